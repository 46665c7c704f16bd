// Plain greedy decoding in llama.cpp, for scripts/peers/llama_shape.py: holds a model, and for each line ROWS PROMPT
// STEPS of its input decodes that many steps of as many sequences, and prints tokens per second.
//
//   llama_decode MODEL THREADS
#include <llama.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr int kMostRows = 64, kMostTokens = 512, kWarmUp = 8;

struct Decoder {
  llama_model* model;
  llama_context* context;
  llama_batch batch = llama_batch_init(kMostTokens, 0, 1);

  void add(llama_token token, int position, int row, bool wanted) {
    const int at = batch.n_tokens++;
    batch.token[at] = token;
    batch.pos[at] = position;
    batch.n_seq_id[at] = 1;
    batch.seq_id[at][0] = row;
    batch.logits[at] = wanted;
  }

  void run() {
    if (llama_decode(context, batch) != 0) {
      std::fprintf(stderr, "llama_decode failed\n");
      std::exit(1);
    }
  }

  llama_token likeliest(int index) {
    const float* logits = llama_get_logits_ith(context, index);
    return std::max_element(logits, logits + llama_vocab_n_tokens(llama_model_get_vocab(model))) - logits;
  }

  double measure(int rows, int prompt, int steps) {
    llama_memory_clear(llama_get_memory(context), true);
    std::vector<llama_token> last(rows);
    for (int row = 0; row < rows; ++row) {
      batch.n_tokens = 0;
      for (int i = 0; i < prompt; ++i) add(2 + (row * 131 + i * 17) % 4000, i, row, i + 1 == prompt);
      run();
      last[row] = likeliest(prompt - 1);
    }
    std::chrono::steady_clock::time_point began;
    for (int step = -kWarmUp; step < steps; ++step) {
      if (step == 0) began = std::chrono::steady_clock::now();
      batch.n_tokens = 0;
      for (int row = 0; row < rows; ++row) add(last[row], prompt + kWarmUp + step, row, true);
      run();
      for (int row = 0; row < rows; ++row) last[row] = likeliest(row);
    }
    return rows * steps / std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  }
};

}  // namespace

int main(int, char** given) {
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_backend_init();
  llama_model* const model = llama_model_load_from_file(given[1], llama_model_default_params());
  if (model == nullptr) return std::fprintf(stderr, "cannot load %s\n", given[1]), 1;
  llama_context_params params = llama_context_default_params();
  params.n_ctx = kMostRows * 256;
  params.n_seq_max = kMostRows;
  params.n_batch = params.n_ubatch = kMostTokens;
  params.n_threads = params.n_threads_batch = std::atoi(given[2]);
  Decoder decoder{model, llama_init_from_model(model, params)};
  std::printf("%s\n", llama_print_system_info());
  std::fflush(stdout);
  for (int rows, prompt, steps; std::scanf("%d %d %d", &rows, &prompt, &steps) == 3; std::fflush(stdout))
    std::printf("%.6f\n", decoder.measure(rows, prompt, steps));
}
