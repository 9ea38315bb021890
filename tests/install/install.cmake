# A program outside the tree uses otimes in each of the ways that the README offers: installed, as a subdirectory, fetched, and
# with an Eigen that is a bare include folder. Each test configures, builds and runs install/consumer.
if(EXISTS "${PROJECT_SOURCE_DIR}/include/otimes/otimes.hpp" AND OTIMES_INSTALL)
  list(GET OTIMES_EIGEN_INCLUDE_DIRS 0 eigen_folder)
  foreach(way IN ITEMS package package_eigen_dir subdirectory fetch_content)
    add_test(
      NAME install.${way}
      COMMAND
        "${CMAKE_COMMAND}" -D way=${way} -D "otimes_source=${PROJECT_SOURCE_DIR}" -D "otimes_build=${PROJECT_BINARY_DIR}" -D
        "folder=${CMAKE_CURRENT_BINARY_DIR}/install/${way}" -D "eigen_folder=${eigen_folder}" -D
        "compiler=${CMAKE_CXX_COMPILER}" -D "generator=${CMAKE_GENERATOR}" -D "eigen_package=${Eigen3_DIR}" -P
        "${CMAKE_CURRENT_SOURCE_DIR}/install/consume.cmake")
    set_tests_properties(install.${way} PROPERTIES TIMEOUT ${OTIMES_TEST_TIMEOUT})
  endforeach()
endif()
