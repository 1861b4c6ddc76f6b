// Who computes? Here the caller alone, one item after the other.
#pragma once

namespace hb {

template <class F>
void pool_each(int items, F&& body) {
    for (int item = 0; item < items; ++item) body(item);
}

}  // namespace hb
