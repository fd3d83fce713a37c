# An image for TIRA, with the model's weights inside, since its machines have no network:
#   docker build --build-arg MODEL=models/NAME -t touche-llm .
#   docker run --rm --network none --gpus all -v INPUT:/in:ro -v OUTPUT:/out touche-llm -i /in -o /out
# The weights lie in models/NAME beside this file.
FROM vllm/vllm-openai:v0.32.0
ARG MODEL
WORKDIR /touche_llm
COPY pyproject.toml README.md LICENSE my-software.sh ./
COPY prompts prompts
COPY touche_llm touche_llm
RUN python3 -m pip install --no-cache-dir .
# The model keeps its folder's name, under which its answers are cached and its runs are described.
COPY ${MODEL} /touche_llm/${MODEL}
ENV TOUCHE_LLM_MODEL=/touche_llm/${MODEL} TOUCHE_LLM_CACHE=/tmp/touche-llm
ENTRYPOINT ["/touche_llm/my-software.sh"]
