# Code blocks in README.md and docs/ are copies of compiled code, and links between the documents lead somewhere.
add_test(NAME docs COMMAND sh "${CMAKE_CURRENT_SOURCE_DIR}/docs/docs.sh" "${PROJECT_SOURCE_DIR}")
add_test(NAME docs_self_test COMMAND sh "${CMAKE_CURRENT_SOURCE_DIR}/docs/self_test.sh")
