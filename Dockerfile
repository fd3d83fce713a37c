# An image for TIRA, with the model's weights inside, since its machines have no network:
#   docker build --build-arg MODEL=models/NAME -t touche-llm .
#   docker run --rm --network none --gpus all -v INPUT:/in:ro -v OUTPUT:/out touche-llm -i /in -o /out
# The weights lie in models/NAME beside this file.
FROM vllm/vllm-openai:v0.32.0
ARG MODEL
WORKDIR /opt/touche_llm
COPY pyproject.toml README.md my-software.sh ./
COPY prompts prompts
COPY touche_llm touche_llm
RUN python3 -m pip install --no-cache-dir .
COPY ${MODEL} /model
ENV TOUCHE_LLM_MODEL=/model TOUCHE_LLM_CACHE=/tmp/touche-llm
ENTRYPOINT ["/opt/touche_llm/my-software.sh"]
