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

# Many small ones, each noticed by one test file: of the planner, and of the kernels, whose text the tests run on the host.
function(otimes_mutate_texts name headers tests)
  set(arguments "${CMAKE_CURRENT_SOURCE_DIR}/mutations/texts.sh" "${CMAKE_CURRENT_SOURCE_DIR}/mutations/${name}.txt"
                "${PROJECT_SOURCE_DIR}/${headers}" "${CMAKE_CURRENT_SOURCE_DIR}/${tests}")
  add_test(NAME mutation_text.${name} COMMAND sh ${arguments} texts)
  # The library's own headers come last: those that a mutation changes are found in its copy.
  add_test(NAME mutation.${name} COMMAND sh ${arguments} "${CMAKE_CXX_COMPILER}" ${flags} -idirafter "${PROJECT_SOURCE_DIR}/include"
                                         $<TARGET_OBJECTS:otimes_test_support> COMMAND_EXPAND_LISTS)
  set_tests_properties(mutation.${name} PROPERTIES LABELS long TIMEOUT 1500)
endfunction()
otimes_mutate_texts(planner include/otimes plan)
if(TARGET test_kernels)
  otimes_mutate_texts(kernels kernels kernels)
endif()
