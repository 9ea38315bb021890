# Each .sed file in this folder breaks one comparison or formula of the library; the tests of the room it names must notice.
file(GLOB mutations CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/mutations/*.sed")
set(flags ${OTIMES_COMPILE_FLAGS} -O1 -w "-I${CMAKE_CURRENT_SOURCE_DIR}"
          "-DOTIMES_SOURCE_DIR=\"${PROJECT_SOURCE_DIR}\"")
foreach(mutation IN LISTS mutations)
  cmake_path(GET mutation STEM name)
  add_test(
    NAME mutation.${name}
    COMMAND sh "${CMAKE_CURRENT_SOURCE_DIR}/mutations/mutate.sh" "${PROJECT_SOURCE_DIR}" "${mutation}"
            "${CMAKE_CXX_COMPILER}" ${flags} $<TARGET_OBJECTS:otimes_test_support>
    COMMAND_EXPAND_LISTS)
  set_tests_properties(mutation.${name} PROPERTIES LABELS long TIMEOUT 900)
  # In every run: the text that it changes is still there.
  add_test(NAME mutation_text.${name} COMMAND sh "${CMAKE_CURRENT_SOURCE_DIR}/mutations/mutate.sh" "${PROJECT_SOURCE_DIR}"
                                              "${mutation}" texts)
endforeach()

# Many small ones of the planner, each noticed by one test file.
add_test(NAME mutation.planner COMMAND sh "${CMAKE_CURRENT_SOURCE_DIR}/plan/mutation.sh" "${PROJECT_SOURCE_DIR}"
                                       "${CMAKE_CXX_COMPILER}")
add_test(NAME mutation_text.planner COMMAND sh "${CMAKE_CURRENT_SOURCE_DIR}/plan/mutation.sh" "${PROJECT_SOURCE_DIR}" texts)
set_tests_properties(mutation.planner PROPERTIES LABELS long TIMEOUT 1500 ENVIRONMENT
                                                 "OTIMES_DOCTEST_DIR=${OTIMES_DOCTEST_DIR}")
