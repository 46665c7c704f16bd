// Threads that share the work of one kernel. A kernel splits its outputs among them, never a sum, so that a result does
// not depend on their number.
#pragma once

namespace aerie {

using Work = void (*)(const void* what, long first, long last);

// Calls work(what, first, last) for parts of 0 .. count - 1, each of at least `least` if there are so many, and returns
// when all are done. The caller works too, and takes what a busy or sleeping thread leaves.
void share(long count, long least, const void* what, Work work);

// The same for a function of (first, last). It may run on another thread: it must not name thread_local buffers of
// its caller.
template <class Function>
void in_parts(long count, long least, const Function& function) {
  share(count, least, &function,
        [](const void* what, long first, long last) { (*static_cast<const Function*>(what))(first, last); });
}

}  // namespace aerie
