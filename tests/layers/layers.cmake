# The include order of the rooms (include/otimes/*), and what no source may include or call.
add_test(NAME layers COMMAND sh "${CMAKE_CURRENT_SOURCE_DIR}/layers/layers.sh" "${PROJECT_SOURCE_DIR}")
add_test(NAME layers_self_test COMMAND sh "${CMAKE_CURRENT_SOURCE_DIR}/layers/self_test.sh" "${PROJECT_SOURCE_DIR}")
