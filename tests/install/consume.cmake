# Builds and runs the consumer; see install.cmake for the variables.
function(must_run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT code EQUAL 0)
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "failed (${code}): ${command}\n${output}")
  endif()
endfunction()

file(REMOVE_RECURSE "${folder}")
set(arguments -D "otimes_from=${way}" -D "CMAKE_CXX_COMPILER=${compiler}")
if(way STREQUAL "package_compiled") # its own build: the library for one instruction set, without OpenMP
  must_run("${CMAKE_COMMAND}" -G "${generator}" -S "${otimes_source}" -B "${folder}/library" -D OTIMES_COMPILED=ON -D
           OTIMES_COMPILED_TARGETS=baseline -D CMAKE_DISABLE_FIND_PACKAGE_OpenMP=ON -D CMAKE_BUILD_TYPE=Debug -D
           OTIMES_BUILD_TESTS=OFF -D OTIMES_BUILD_EXAMPLES=OFF -D OTIMES_BUILD_BENCH=OFF -D OTIMES_CUDA=OFF -D
           "OTIMES_EIGEN_DIR=${eigen_folder}" -D "CMAKE_CXX_COMPILER=${compiler}")
  must_run("${CMAKE_COMMAND}" --build "${folder}/library")
  must_run("${CMAKE_COMMAND}" --install "${folder}/library" --prefix "${folder}/prefix")
  list(APPEND arguments -D "CMAKE_PREFIX_PATH=${folder}/prefix")
elseif(way MATCHES "^package")
  must_run("${CMAKE_COMMAND}" --install "${otimes_build}" --prefix "${folder}/prefix")
  list(APPEND arguments -D "CMAKE_PREFIX_PATH=${folder}/prefix")
else()
  list(APPEND arguments -D "otimes_source=${otimes_source}")
endif()
if(way STREQUAL "package_eigen_dir")
  list(APPEND arguments -D "OTIMES_EIGEN_DIR=${eigen_folder}")
elseif(eigen_package)
  list(APPEND arguments -D "Eigen3_DIR=${eigen_package}")
else()
  list(APPEND arguments -D "OTIMES_EIGEN_DIR=${eigen_folder}")
endif()

must_run("${CMAKE_COMMAND}" -G "${generator}" -S "${CMAKE_CURRENT_LIST_DIR}/consumer" -B "${folder}/build" ${arguments})
must_run("${CMAKE_COMMAND}" --build "${folder}/build")
must_run("${folder}/build/consumer")
