# Many small breaks, each noticed by one test file: of the planner, and of the kernels, whose text the tests run on the host.
# Without optimisation, as the default run compiles these tests (there they pass unchanged): compiling is most of it. In parts that run
# beside each other. clang++ takes half of g++'s time for the planner's; the kernels' are for g++ alone.
find_program(OTIMES_TEST_CLANG clang++)
mark_as_advanced(OTIMES_TEST_CLANG)
set(flags ${OTIMES_COMPILE_FLAGS} -O0 -w "-I${CMAKE_CURRENT_SOURCE_DIR}" "-DOTIMES_SOURCE_DIR=\"${PROJECT_SOURCE_DIR}\"")
set(mutation_parts 4)
function(otimes_mutate_texts name headers tests compiler)
  set(arguments "${CMAKE_CURRENT_SOURCE_DIR}/mutations/texts.sh" "${CMAKE_CURRENT_SOURCE_DIR}/mutations/${name}.txt"
                "${PROJECT_SOURCE_DIR}/${headers}" "${CMAKE_CURRENT_SOURCE_DIR}/${tests}")
  # In every run: each text that is changed is still there.
  add_test(NAME mutation_text.${name} COMMAND sh ${arguments} 1/1 texts)
  foreach(part RANGE 1 ${mutation_parts})
    # The library's own headers come last: those that a mutation changes are found in its copy.
    add_test(NAME mutation.${name}.${part}
             COMMAND sh ${arguments} ${part}/${mutation_parts} "${compiler}" ${flags} -idirafter "${PROJECT_SOURCE_DIR}/include"
                     $<TARGET_OBJECTS:otimes_test_support> COMMAND_EXPAND_LISTS)
    set_tests_properties(mutation.${name}.${part} PROPERTIES LABELS long TIMEOUT 1500 COST 60)
  endforeach()
endfunction()
if(OTIMES_TEST_CLANG)
  otimes_mutate_texts(planner include/otimes plan "${OTIMES_TEST_CLANG}")
else()
  otimes_mutate_texts(planner include/otimes plan "${CMAKE_CXX_COMPILER}")
endif()
if(TARGET test_kernels)
  otimes_mutate_texts(kernels kernels kernels "${CMAKE_CXX_COMPILER}")
endif()
