"""llama.cpp's own HTTP server as the xllamacpp wheel has it: C++ from the socket on, this only starts it.

    python -m homebox.bench.peers.llamacpp_server FILE.gguf --port 8000 --parallel 32 --context 32768

Runs in the environment that has xllamacpp. Same settings as llama-server's options of the same names.
"""

from __future__ import annotations

import argparse
import signal


def main() -> None:
    import xllamacpp

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("gguf")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--parallel", type=int, required=True)
    parser.add_argument("--context", type=int, required=True, help="tokens, of all slots together")
    args = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = args.gguf
    params.hostnames, params.port = ["127.0.0.1"], args.port
    params.n_parallel, params.n_ctx, params.cont_batching = args.parallel, args.context, True
    for cores in (params.cpuparams, params.cpuparams_batch):
        cores.n_threads = args.threads
    server = xllamacpp.Server(params)
    print(server.listening_address, xllamacpp.get_system_info(), flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main()
