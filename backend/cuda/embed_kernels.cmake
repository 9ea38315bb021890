# cmake -D folder=KERNELS -D output=FILE.cpp -P embed_kernels.cmake: the text of every file in KERNELS as a C++ file.
file(GLOB files "${folder}/*.cuh")
list(SORT files)
set(entries "")
foreach(file IN LISTS files)
  cmake_path(GET file FILENAME name)
  file(READ "${file}" text)
  string(APPEND entries "        {\"${name}\", R\"otimes_text(${text})otimes_text\"},\n")
endforeach()
file(
  WRITE "${output}"
  "// Written by embed_kernels.cmake.
#include \"runtime_compiler.hpp\"

namespace otimes::backend {

const std::vector<std::pair<std::string, std::string>>& kernel_sources() {
    static const auto* const sources = new std::vector<std::pair<std::string, std::string>>{
${entries}    };
    return *sources;
}

}  // namespace otimes::backend
")
