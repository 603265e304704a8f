# The target quantkit_cuda: native code for the architectures in CMAKE_CUDA_ARCHITECTURES and PTX
# for later ones. Results equal the CPU's, hence no fused multiply-add and no fast mathematics.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 86-real 89-real 90-real 120)
endif()
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
enable_language(CUDA)

add_library(quantkit_cuda SHARED cuda/api.cu cuda/decode.cu cuda/encode_blocks.cu
            cuda/encode_super.cu)
target_compile_options(quantkit_cuda PRIVATE -fmad=false -Xcompiler=-ffp-contract=off
                       --threads=0)
if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
  target_link_options(quantkit_cuda PRIVATE -static-libstdc++ -static-libgcc -s)
endif()
install(TARGETS quantkit_cuda LIBRARY DESTINATION quantkit/native
        RUNTIME DESTINATION quantkit/native)
if(DEFINED qk_home)
  add_custom_command(
    TARGET quantkit_cuda POST_BUILD
    COMMAND ${CMAKE_COMMAND} -E copy $<TARGET_FILE:quantkit_cuda> ${qk_home}/.quantkit_cuda.new
    COMMAND ${CMAKE_COMMAND} -E rename ${qk_home}/.quantkit_cuda.new
            ${qk_home}/$<TARGET_FILE_NAME:quantkit_cuda>)
endif()
