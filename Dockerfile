# An image for TIRA, with the model's weights inside, since its machines have no network:
#   docker build --build-arg MODEL=models/NAME -t touche-llm .
#   docker run --rm --network none --gpus all --user "$(id -u):$(id -g)" \
#     -v INPUT:/in:ro -v OUTPUT:/out touche-llm -i /in -o /out
# The weights lie in models/NAME beside this file. A tag can be moved; to build on one certain image, add
#   --build-arg BASE=vllm/vllm-openai@sha256:DIGEST
# with the digest that `docker buildx imagetools inspect vllm/vllm-openai:v0.32.0` prints.
ARG BASE=vllm/vllm-openai:v0.32.0
FROM ${BASE}
ARG MODEL
WORKDIR /touche_llm
COPY pyproject.toml README.md LICENSE my-software.sh ./
COPY prompts prompts
COPY touche_llm touche_llm
RUN python3 -m pip install --no-cache-dir .
# The model keeps its folder's name, under which its answers are cached and its runs are described.
COPY --chown=10001:10001 ${MODEL} /touche_llm/${MODEL}
# PyTorch looks up the name of the user, which an id given with `--user` need not have.
ENV TOUCHE_LLM_MODEL=/touche_llm/${MODEL} TOUCHE_LLM_CACHE=/tmp/touche-llm HOME=/tmp USER=touche
USER 10001:10001
ENTRYPOINT ["/touche_llm/my-software.sh"]
