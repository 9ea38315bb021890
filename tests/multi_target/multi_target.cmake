# Two files compiled for different instruction sets, one with and one without OpenMP, linked in either order: each must run its
# own code. a.cpp is the one with AVX2, FMA and OpenMP, b.cpp the one with the compiler's defaults; main.cpp compares them.
set(multi_target_folder "${CMAKE_CURRENT_SOURCE_DIR}/multi_target")
if(NOT EXISTS "${multi_target_folder}/main.cpp")
  return()
endif()

include(CheckCXXSourceRuns)
set(CMAKE_REQUIRED_FLAGS "-mavx2 -mfma")
check_cxx_source_runs(
  "#include <immintrin.h>
   int main(int argc, char**) {
     const __m256d x = _mm256_fmadd_pd(_mm256_set1_pd(argc), _mm256_set1_pd(2.0), _mm256_set1_pd(3.0));
     return _mm256_movemask_epi8(_mm256_castpd_si256(x)) == 1 ? 2 : 0;
   }"
  OTIMES_RUNS_AVX2)
unset(CMAKE_REQUIRED_FLAGS)

add_library(multi_target_a OBJECT "${multi_target_folder}/a.cpp")
add_library(multi_target_b OBJECT "${multi_target_folder}/b.cpp")
add_library(multi_target_main OBJECT "${multi_target_folder}/main.cpp")
foreach(part IN ITEMS a b main)
  target_link_libraries(multi_target_${part} PRIVATE otimes::otimes)
  otimes_warnings(multi_target_${part})
  # Eigen's own matrices link across instruction sets only where their alignment is the same everywhere.
  target_compile_definitions(multi_target_${part} PRIVATE EIGEN_MAX_ALIGN_BYTES=32)
endforeach()
if(OTIMES_RUNS_AVX2)
  target_compile_options(multi_target_a PRIVATE -mavx2 -mfma)
endif()
if(TARGET OpenMP::OpenMP_CXX)
  target_link_libraries(multi_target_a PRIVATE OpenMP::OpenMP_CXX)
endif()

foreach(order IN ITEMS ab ba)
  if(order STREQUAL "ab")
    set(objects $<TARGET_OBJECTS:multi_target_a> $<TARGET_OBJECTS:multi_target_b>)
  else()
    set(objects $<TARGET_OBJECTS:multi_target_b> $<TARGET_OBJECTS:multi_target_a>)
  endif()
  add_executable(multi_target_${order} $<TARGET_OBJECTS:multi_target_main> ${objects})
  if(TARGET OpenMP::OpenMP_CXX)
    target_link_libraries(multi_target_${order} PRIVATE OpenMP::OpenMP_CXX)
  endif()
  add_test(NAME multi_target_${order} COMMAND multi_target_${order})
  add_dependencies(default_tests multi_target_${order})
  set_tests_properties(multi_target_${order} PROPERTIES TIMEOUT ${OTIMES_TEST_TIMEOUT} ENVIRONMENT "OMP_NUM_THREADS=3")
  if(NOT OTIMES_RUNS_AVX2)
    set_tests_properties(multi_target_${order} PROPERTIES DISABLED TRUE) # shown as not run: one instruction set only
  endif()
endforeach()
