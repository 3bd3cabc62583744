/* The graphs of narrow passes: llama.cpp keeps the last graph only, so that it builds another one whenever the number of
   tokens changes, as it does around each draft: for small models an eighth of a pass. */
#ifndef EDGESPEC_GRAPHS_H
#define EDGESPEC_GRAPHS_H

#include <algorithm>
#include <utility>
#include <vector>

namespace edgespec {

/* The graphs of passes over up to NARROW tokens that return logits, each with the scheduler in which it is allocated. All
   other passes use the first scheduler, whose buffers were reserved for the widest pass. The members of llama_context are
   those of the graph that is in use. */
class kept_graphs {
  public:
    /* Members of llama_context. */
    struct members {
        ggml_backend_sched_ptr & sched;
        llm_graph_result_ptr & result;
        llm_graph_result *& active;
    };

  private:
    enum { NARROW = 16, MOST = 10 };

    struct graph {
        ggml_backend_sched_ptr sched;
        llm_graph_result_ptr result;
        llm_graph_result * active; /* allocated in the scheduler: this result, or that of a pass without logits */
        uint32_t tokens; /* 0: the first scheduler */
    };

    std::vector<graph> others; /* the one that was used last is at the end */
    uint32_t tokens = 0; /* of the graph in use */

    void use(members context, size_t place) {
        graph next = std::move(others[place]);
        others.erase(others.begin() + place);
        put_away(context);
        std::swap(context.sched, next.sched);
        std::swap(context.result, next.result);
        context.active = next.active;
        tokens = next.tokens;
    }

    void put_away(members context) {
        others.push_back({std::move(context.sched), std::move(context.result), context.active, tokens});
    }

    template <class F> size_t find(F is_it) const {
        return std::find_if(others.begin(), others.end(), is_it) - others.begin();
    }

  public:
    /* Uses the first scheduler. */
    void use_first(members context) {
        if (tokens) {
            use(context, find([](const graph & each) { return each.tokens == 0; }));
        }
    }

    /* Uses the graph for a pass over `n` tokens, or a scheduler for it. `fits` says if a graph can be computed again. */
    template <class F, class M> void choose(members context, uint32_t n, bool has_logits, F fits, M make_sched) {
        if (!context.active) { /* all graphs were dropped, since something that they depend on has changed */
            others.clear();
            tokens = 0;
        }
        if (!has_logits || n > NARROW) {
            use_first(context);
            return;
        }
        const auto is_ready = [&](uint32_t of, llm_graph_result * result, llm_graph_result * active) {
            return of == n && result && result == active && fits(result);
        };
        if (is_ready(tokens, context.result.get(), context.active)) {
            return;
        }
        size_t place = find([&](const graph & each) { return is_ready(each.tokens, each.result.get(), each.active); });
        if (place == others.size() && tokens == n) {
            return; /* the graph in use is built again, as the cache has grown */
        }
        if (place == others.size()) {
            place = find([&](const graph & each) { return each.tokens == n; });
        }
        if (place == others.size() && others.size() >= MOST) {
            place = find([](const graph & each) { return each.tokens != 0; });
        }
        if (place < others.size()) {
            use(context, place);
        } else {
            put_away(context);
            context.sched = make_sched();
            context.active = nullptr;
        }
        tokens = n;
    }
};

} // namespace edgespec

#endif
