// SPDX-License-Identifier: MIT
// EXPECT: an identity alone has no scalar type in device memory
#include <otimes/cuda.hpp>

void use(const otimes::DeviceMatrix<double>& dX, const otimes::DeviceMatrix<double>& dA) {
    static_cast<void>(dX * otimes::kron(otimes::identity(3), dA));
#ifdef OTIMES_MUST_NOT_COMPILE
    static_cast<void>(dX * otimes::kron(otimes::identity(3)));
#endif
}
