# Code that must not compile, with the sentence the compiler must show: the .cpp files of this folder, those that can be as one file,
# and in the long form each alone. clang++ names the file behind an error, where together.sh does not look.
file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/compile_fail/*.cpp")
set(flags ${OTIMES_COMPILE_FLAGS} "-I${PROJECT_SOURCE_DIR}/include")
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  list(APPEND flags -ferror-limit=0) # it stops after 20 errors, and a file may have more
endif()

# The library and Eigen are parsed once for all of them.
set(front "${CMAKE_CURRENT_BINARY_DIR}/compile_fail/front.hpp")
file(WRITE "${front}" "#include <Eigen/Dense>\n#include <otimes/otimes.hpp>\n")
add_test(NAME compile_fail_header COMMAND "${CMAKE_CXX_COMPILER}" ${flags} -x c++-header "${front}" -o "${front}.gch")
set_tests_properties(compile_fail_header PROPERTIES FIXTURES_SETUP compile_fail_header LABELS rest)

set(alone_labels LABELS rest)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(alone_labels LABELS long)
  add_test(NAME compile_fail COMMAND sh "${CMAKE_CURRENT_SOURCE_DIR}/compile_fail/together.sh" "${CMAKE_CURRENT_SOURCE_DIR}/compile_fail"
                                     "${CMAKE_CURRENT_BINARY_DIR}/compile_fail" "${CMAKE_CXX_COMPILER}" ${flags} -include "${front}")
  set_tests_properties(compile_fail PROPERTIES TIMEOUT ${OTIMES_TEST_TIMEOUT} FIXTURES_REQUIRED compile_fail_header COST 100 LABELS rest)
endif()
foreach(source IN LISTS sources)
  cmake_path(GET source STEM name)
  add_test(NAME compile_fail.${name} COMMAND sh "${CMAKE_CURRENT_SOURCE_DIR}/compile_fail/check.sh" "${source}"
                                             "${CMAKE_CXX_COMPILER}" ${flags} -include "${front}")
  set_tests_properties(compile_fail.${name} PROPERTIES TIMEOUT ${OTIMES_TEST_TIMEOUT} FIXTURES_REQUIRED compile_fail_header ${alone_labels})
endforeach()

# Those of programs that do not include Eigen.
file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/compile_fail/without_eigen/*.cpp")
foreach(source IN LISTS sources)
  cmake_path(GET source STEM name)
  add_test(NAME compile_fail.without_eigen.${name} COMMAND sh "${CMAKE_CURRENT_SOURCE_DIR}/compile_fail/check.sh" "${source}"
                                                           "${CMAKE_CXX_COMPILER}" ${flags})
  set_tests_properties(compile_fail.without_eigen.${name} PROPERTIES TIMEOUT ${OTIMES_TEST_TIMEOUT} LABELS rest)
endforeach()

# The checks themselves must be able to fail.
add_test(NAME compile_fail_self_test COMMAND sh "${CMAKE_CURRENT_SOURCE_DIR}/compile_fail/self_test.sh"
                                             "${CMAKE_CXX_COMPILER}")
