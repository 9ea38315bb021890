# What tests, examples and benchmarks have in common. Nothing here reaches a user of the library.

set(CMAKE_CXX_EXTENSIONS OFF)

# Adds the project's warnings to a target.
function(otimes_warnings target)
  target_compile_options(${target} PRIVATE ${OTIMES_WARNING_FLAGS})
endfunction()

set(OTIMES_WARNING_FLAGS "")
if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  set(OTIMES_WARNING_FLAGS -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion)
  if(OTIMES_WERROR)
    list(APPEND OTIMES_WARNING_FLAGS -Werror)
  endif()
endif()

# For the machine that compiles. g++ takes the headers of its own AVX-512 intrinsics for uses of uninitialised values.
set(OTIMES_NATIVE_FLAGS -march=native "$<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized;-Wno-maybe-uninitialized>")

find_package(OpenMP QUIET COMPONENTS CXX)

# Adds one executable for each .cpp file in the calling folder, built for the machine that compiles it.
function(otimes_add_programs kind)
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cpp")
  foreach(source IN LISTS sources)
    cmake_path(GET source STEM name)
    add_executable(${kind}_${name} "${source}")
    set_target_properties(${kind}_${name} PROPERTIES OUTPUT_NAME ${name})
    target_link_libraries(${kind}_${name} PRIVATE otimes::otimes)
    target_compile_definitions(${kind}_${name} PRIVATE ${ARGN})
    if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
      target_compile_options(${kind}_${name} PRIVATE $<$<CONFIG:Release>:-O3> ${OTIMES_NATIVE_FLAGS})
    endif()
    if(TARGET OpenMP::OpenMP_CXX)
      target_link_libraries(${kind}_${name} PRIVATE OpenMP::OpenMP_CXX)
    endif()
    otimes_warnings(${kind}_${name})
  endforeach()
endfunction()
