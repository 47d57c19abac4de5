'use strict';
// Node's own fetch looks at no proxy variables before version 24. This gives it connections through the proxy of the run.
const { HTTP_PROXY } = process.env;
if (HTTP_PROXY && globalThis.fetch && !process.allowedNodeEnvironmentFlags.has('--use-env-proxy')) {
  const dispatcher = Symbol.for('undici.globalDispatcher.1');
  const proxy = new URL(HTTP_PROXY);
  const plainFetch = globalThis.fetch;
  let ready;

  function connect({ hostname, port, protocol, servername }, done) {
    const secure = protocol === 'https:';
    const target = `${hostname}:${port || (secure ? 443 : 80)}`;
    const options = { host: proxy.hostname, port: proxy.port, method: 'CONNECT', path: target, agent: false };
    require('http')
      .request({ ...options, headers: { Host: target } })
      .once('connect', (answer, socket) => {
        if (answer.statusCode !== 200) {
          socket.destroy();
          return done(new Error(answer.statusMessage));
        }
        if (!secure) return done(null, socket);
        const name = servername || hostname;
        const tls = require('tls').connect({ socket, servername: name, ALPNProtocols: ['http/1.1'] });
        tls.once('secureConnect', () => done(null, tls)).once('error', done);
      })
      .once('error', done)
      .end();
  }

  async function prepare() {
    await plainFetch('data:,'); // loads it
    const Agent = globalThis[dispatcher].constructor;
    globalThis[dispatcher] = new Agent({ connect });
  }

  globalThis.fetch = function fetch(...given) {
    ready ??= prepare();
    return ready.then(() => plainFetch(...given));
  };
}
