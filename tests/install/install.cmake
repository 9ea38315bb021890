# A program outside the tree uses otimes in each of the ways that the README offers: installed, as a subdirectory, fetched, and
# with an Eigen that is a bare include folder, and with the compiled library. Each test configures, builds and runs install/consumer.
# Where the build has otimes::cuda (OTIMES_CUDA=ON), the installed one is linked too; elsewhere asking for it is refused.
if(OTIMES_INSTALL)
  list(GET OTIMES_EIGEN_INCLUDE_DIRS 0 eigen_folder)
  set(has_cuda OFF)
  if(OTIMES_INSTALLED_BACKENDS AND OTIMES_CUDA_FOUND)
    set(has_cuda ON)
  endif()
  foreach(way IN ITEMS package package_compiled package_eigen_dir subdirectory fetch_content)
    add_test(
      NAME install.${way}
      COMMAND
        "${CMAKE_COMMAND}" -D way=${way} -D "otimes_source=${PROJECT_SOURCE_DIR}" -D "otimes_build=${PROJECT_BINARY_DIR}" -D
        "folder=${CMAKE_CURRENT_BINARY_DIR}/install/${way}" -D "eigen_folder=${eigen_folder}" -D
        "compiler=${CMAKE_CXX_COMPILER}" -D "generator=${CMAKE_GENERATOR}" -D "eigen_package=${Eigen3_DIR}" -D has_cuda=${has_cuda} -P
        "${CMAKE_CURRENT_SOURCE_DIR}/install/consume.cmake")
    set_tests_properties(install.${way} PROPERTIES TIMEOUT ${OTIMES_TEST_TIMEOUT})
  endforeach()
  set_tests_properties(install.package_compiled install.fetch_content PROPERTIES LABELS long TIMEOUT 900)
  set_tests_properties(install.package_eigen_dir install.subdirectory PROPERTIES LABELS rest)
endif()

# Which Eigen is accepted: 3.3 is too old, 3.4 and 5 serve.
add_test(NAME install.eigen_version
         COMMAND "${CMAKE_COMMAND}" -D "module=${PROJECT_SOURCE_DIR}/cmake/otimes_eigen.cmake" -D
                 "folder=${CMAKE_CURRENT_BINARY_DIR}/install/eigen_version" -D "generator=${CMAKE_GENERATOR}" -P
                 "${CMAKE_CURRENT_SOURCE_DIR}/install/eigen_version.cmake")
