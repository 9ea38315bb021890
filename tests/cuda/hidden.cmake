# cmake -D source=REPOSITORY -D folder=SCRATCH -D compiler=C++ -D generator=GENERATOR -D eigen_folder=EIGEN -P hidden.cmake
# Where no CUDA toolkit is found, OTIMES_CUDA=AUTO configures with the stub and says so; ON stops with a sentence that says what to do.
foreach(wish IN ITEMS AUTO ON)
  file(REMOVE_RECURSE "${folder}/${wish}")
  execute_process(
    COMMAND
      "${CMAKE_COMMAND}" -G "${generator}" -S "${source}" -B "${folder}/${wish}" -D OTIMES_CUDA=${wish} -D
      CMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON -D CMAKE_CUDA_COMPILER=NOTFOUND -D OTIMES_MPI=OFF -D OTIMES_BUILD_TESTS=OFF -D
      OTIMES_BUILD_EXAMPLES=ON -D OTIMES_BUILD_BENCH=ON -D "CMAKE_CXX_COMPILER=${compiler}" -D "OTIMES_EIGEN_DIR=${eigen_folder}"
    RESULT_VARIABLE code
    OUTPUT_VARIABLE output
    ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}") # the message is wrapped
  if(wish STREQUAL "AUTO" AND (NOT code EQUAL 0 OR NOT output MATCHES "CUDA back end off"))
    message(FATAL_ERROR "OTIMES_CUDA=AUTO without a toolkit must configure, with the stub:\n${output}")
  elseif(wish STREQUAL "ON" AND (code EQUAL 0 OR NOT output MATCHES "no CUDA toolkit with NVRTC was found. Install one"))
    message(FATAL_ERROR "OTIMES_CUDA=ON without a toolkit must be refused, with a sentence:\n${output}")
  endif()
endforeach()
