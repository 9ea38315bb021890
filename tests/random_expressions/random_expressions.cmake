# Random expressions, generated and compiled: what compiles, and gives the same as dense matrices. A second or less of the compiler for each.
foreach(kind IN ITEMS real complex mixed)
  add_test(NAME random_expressions.${kind}
           COMMAND sh "${CMAKE_CURRENT_SOURCE_DIR}/random_expressions/run.sh" ${kind} 100 "${CMAKE_CXX_COMPILER}" ${OTIMES_COMPILE_FLAGS}
                   "-I${PROJECT_SOURCE_DIR}/include" -O0 -w)
  set_tests_properties(random_expressions.${kind} PROPERTIES LABELS long TIMEOUT 1500)
endforeach()
