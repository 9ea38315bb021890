# Every public header compiles alone, twice in a row, with warnings as errors; and all of them together after a user's macros.
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/include/*.hpp")
set(flags ${OTIMES_COMPILE_FLAGS} "-I${PROJECT_SOURCE_DIR}/include" ${OTIMES_WARNING_FLAGS} -Werror)
foreach(header IN LISTS headers)
  string(REGEX REPLACE "^otimes/(.*)\\.hpp$" "\\1" name "${header}")
  add_test(NAME headers.${name} COMMAND sh "${CMAKE_CURRENT_SOURCE_DIR}/headers/alone.sh" ${header}
                                        "${CMAKE_CXX_COMPILER}" ${flags})
  set_tests_properties(headers.${name} PROPERTIES TIMEOUT ${OTIMES_TEST_TIMEOUT})
  if(header MATCHES "adapt/thrust")
    set_tests_properties(headers.${name} PROPERTIES DISABLED TRUE) # needs nvcc; shown as not run
  endif()
endforeach()
add_test(NAME headers_after_macros COMMAND sh "${CMAKE_CURRENT_SOURCE_DIR}/headers/after_macros.sh"
                                           "${PROJECT_SOURCE_DIR}/include" "${CMAKE_CXX_COMPILER}" ${flags})
add_test(NAME headers_self_test COMMAND sh "${CMAKE_CURRENT_SOURCE_DIR}/headers/self_test.sh" "${CMAKE_CXX_COMPILER}")

# What a file with one product compiles, counted; the ceilings are 5 to 8 % above what g++ 12 gives, clang++ gives less.
add_test(NAME headers_one_product COMMAND sh "${CMAKE_CURRENT_SOURCE_DIR}/headers/one_product.sh" 3000 510 "${CMAKE_CXX_COMPILER}"
                                          ${OTIMES_COMPILE_FLAGS} "-I${PROJECT_SOURCE_DIR}/include")
set_tests_properties(headers_one_product PROPERTIES TIMEOUT ${OTIMES_TEST_TIMEOUT})
