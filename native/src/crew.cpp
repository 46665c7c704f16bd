#include "crew.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace aerie {

namespace {

constexpr long kSpins = 1000;       // about the time between two products of a step; after it a thread sleeps
constexpr long kPartsEach = 2;      // a thread that was interrupted holds up less than half of the work
constexpr uint64_t kMostParts = 0xFFFF;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A round: its number, how many parts it has, and the next one that nobody has taken. In one word, so that a thread that
// comes late cannot take a part of another round.
struct Round {
  explicit Round(uint64_t word) : word(word) {}
  Round(uint64_t number, uint64_t parts) : word(number << 32 | parts << 16) {}
  uint64_t number() const { return word >> 32; }
  uint64_t parts() const { return word >> 16 & kMostParts; }
  uint64_t next() const { return word & kMostParts; }
  uint64_t word;
};

class Crew {
 public:
  // Waits for the round that is running.
  void resize(long threads) {
    const std::lock_guard<std::mutex> alone(busy_);
    if (threads == this->threads()) return;
    leaving_ = true;
    start(0);
    for (std::thread& thread : others_) thread.join();
    others_.clear();
    leaving_ = false;
    for (long i = 1; i < threads; ++i) others_.emplace_back([this, seen = round()] { serve(seen.number()); });
    threads_ = threads;
  }

  long threads() const { return threads_; }

  void share(long count, long least, const void* what, Work work) {
    const long most = std::min<long>(threads() * kPartsEach, kMostParts);
    const long parts = std::min(most, count / std::max(least, 1L));
    std::unique_lock<std::mutex> alone(busy_, std::defer_lock);
    if (threads() == 1 || parts < 2 || !alone.try_lock()) {  // locked: the others serve another caller
      work(what, 0, count);
      return;
    }
    what_ = what, work_ = work, count_ = count;
    done_ = 0;
    start(parts);
    take();
    for (long spins = 0; done_.load(std::memory_order_acquire) < parts; ++spins)
      spins < kSpins ? pause() : std::this_thread::yield();
  }

 private:
  Round round() const { return Round(round_.load()); }

  void start(uint64_t parts) {
    round_ = Round((round().number() + 1) & 0xFFFFFFFF, parts).word;
    if (asleep_ == 0) return;
    const std::lock_guard<std::mutex> lock(sleep_);
    begun_.notify_all();
  }

  void take() {
    for (Round now = round(); now.next() < now.parts();) {
      const void* what = what_;
      const Work work = work_;
      const long count = count_, part = static_cast<long>(now.next()), parts = static_cast<long>(now.parts());
      if (!round_.compare_exchange_strong(now.word, now.word + 1)) continue;
      work(what, part * count / parts, (part + 1) * count / parts);
      done_.fetch_add(1, std::memory_order_release);
      now = round();
    }
  }

  void serve(uint64_t seen) {
    for (;; seen = round().number(), take()) {
      for (long spins = 0; spins < kSpins && round().number() == seen; ++spins) pause();
      if (round().number() == seen) {
        std::unique_lock<std::mutex> lock(sleep_);
        ++asleep_;
        begun_.wait(lock, [&] { return round().number() != seen; });
        --asleep_;
      }
      if (leaving_) return;
    }
  }

  std::vector<std::thread> others_;
  std::atomic<long> threads_{1};
  std::mutex busy_, sleep_;
  std::condition_variable begun_;
  std::atomic<bool> leaving_{false};
  std::atomic<uint64_t> round_{0};
  std::atomic<long> asleep_{0}, done_{0}, count_{0};
  std::atomic<const void*> what_{nullptr};
  std::atomic<Work> work_{nullptr};
};

Crew& crew() {
  static Crew& only = *new Crew;  // never destroyed: its threads may sleep until the process ends
  return only;
}

}  // namespace

void share(long count, long least, const void* what, Work work) { crew().share(count, least, what, work); }

}  // namespace aerie

// For all kernels of this process, which changes no result.
extern "C" void use_threads(long threads) { aerie::crew().resize(threads); }
