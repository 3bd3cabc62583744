# The server in a container. Build the wheels first: ./scripts/release linux-x86_64 edgespec (or linux-aarch64)
#
#   docker build -t edgespec .
#   docker run -p 8080:8080 -e EDGESPEC_API_KEY=secret -v edgespec:/data edgespec
FROM python:3.12-slim

RUN --mount=type=bind,source=dist,target=/wheels \
    pip install --no-cache-dir --root-user-action=ignore --find-links /wheels "$(echo /wheels/edgespec-*.whl)[serve,documents]" \
    && useradd --uid 1000 --create-home edgespec \
    && install -d -o edgespec /data

USER edgespec
# Models and measured costs are kept in the volume. The server needs a key, EDGESPEC_API_KEY, to be reached from outside.
ENV EDGESPEC_HOME=/data HF_HOME=/data/hub
VOLUME /data
EXPOSE 8080
HEALTHCHECK --start-period=2m CMD ["python", "-c", "from urllib.request import *; build_opener(ProxyHandler({})).open('http://127.0.0.1:8080/health')"]
ENTRYPOINT ["edgespec"]
CMD ["serve", "--host", "0.0.0.0", "--yes"]
