// An OpenID provider whose access tokens are JWTs for the audience "leveret".
//
// A request for a token chooses with headers: x-ttl (seconds), x-alg, x-claims (more claims as JSON), x-audience.
// POST /test/ttl with {"ttl": seconds} sets the default lifetime of tokens; POST /test/tokens with {"answers": false} ends
// the answers to requests for tokens.
// POST /test/rotate replaces the signing keys; POST /test/jwks with {"mode": "normal" | "hang" | "drip" | "huge" | "many"
// | "garbage" | "redirect"} changes how the keys are served; GET /test/jwks returns the number of requests for keys.
import { createRequire } from 'node:module';
import { createServer } from 'node:http';
import { createPrivateKey, generateKeyPairSync, randomUUID } from 'node:crypto';

const require = createRequire(`${process.env.NODE_PATH}/`);
const { Provider } = await import(require.resolve('oidc-provider'));

const redirects = JSON.parse(process.env.OIDC_REDIRECTS || '[]');
const silent = () => {};
let provider;
let mode = 'normal';
let fetches = 0;
let ttl = 3600;
let answers = true;

function key(kind, options, alg) {
  // Through PEM: if the garbage collector runs during the export of a generated key, Node 20 waits for the lock of this key,
  // which it holds itself.
  const pem = { publicKeyEncoding: { type: 'spki', format: 'pem' }, privateKeyEncoding: { type: 'pkcs8', format: 'pem' } };
  const { privateKey } = generateKeyPairSync(kind, { ...options, ...pem });
  return { ...createPrivateKey(privateKey).export({ format: 'jwk' }), kid: randomUUID(), alg, use: 'sig' };
}

function make(issuer) {
  const made = new Provider(issuer, {
    jwks: {
      keys: [
        key('rsa', { modulusLength: 2048 }, 'RS256'),
        key('ec', { namedCurve: 'P-256' }, 'ES256'),
      ],
    },
    clients: [
      {
        client_id: 'service',
        client_secret: 'secret',
        grant_types: ['client_credentials'],
        redirect_uris: [],
        response_types: [],
      },
      {
        client_id: 'console',
        token_endpoint_auth_method: 'none',
        application_type: 'web',
        grant_types: ['authorization_code', 'refresh_token'],
        redirect_uris: redirects,
        post_logout_redirect_uris: redirects,
      },
    ],
    scopes: ['openid', 'leveret.tag:administrator', 'leveret.read:*/*', 'leveret.write:*/*', 'leveret.configure:*/*'],
    clientBasedCORS: () => true,
    conformIdTokenClaims: false,
    issueRefreshToken: () => true,
    pkce: { required: () => true },
    findAccount: (ctx, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
    features: {
      clientCredentials: { enabled: true },
      devInteractions: { enabled: true },
      revocation: { enabled: true },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => 'urn:leveret',
        useGrantedResource: () => true,
        getResourceServerInfo: (ctx) => ({
          scope: ctx.oidc.params?.scope ?? 'leveret.tag:administrator leveret.read:*/* leveret.write:*/* leveret.configure:*/*',
          audience: ctx.get('x-audience') || 'leveret',
          accessTokenFormat: 'jwt',
          accessTokenTTL: Number(ctx.get('x-ttl') || ttl),
          jwt: { sign: { alg: ctx.get('x-alg') || 'RS256' } },
        }),
      },
    },
    extraTokenClaims: (ctx) => JSON.parse(ctx.get('x-claims') || '{}'),
  });
  made.on('server_error', (ctx, error) => console.error(error));
  return made;
}

function body(request) {
  return new Promise((resolve) => {
    let text = '';
    request.on('data', (part) => (text += part));
    request.on('end', () => resolve(text));
  });
}

function serveKeys(request, response) {
  const headers = { 'content-type': 'application/json' };
  if (mode === 'hang') return true;
  if (mode === 'drip') {
    response.writeHead(200, headers);
    const timer = setInterval(() => response.write(' '), 20);
    response.on('close', () => clearInterval(timer));
    return true;
  }
  if (mode === 'huge') {
    response.writeHead(200, headers);
    const part = ' '.repeat(1 << 16);
    const more = () => {
      while (!response.destroyed && response.write(part));
      if (!response.destroyed) response.once('drain', more);
    };
    response.on('error', silent);
    more();
    return true;
  }
  if (mode === 'many') {
    const keys = Array.from({ length: 200 }, (_, n) => ({ kty: 'RSA', n: 'AQAB', e: 'AQAB', kid: `${n}` }));
    response.writeHead(200, headers).end(JSON.stringify({ keys }));
    return true;
  }
  if (mode === 'garbage') {
    response.writeHead(200, headers).end('[['.repeat(50000));
    return true;
  }
  if (mode === 'redirect') {
    response.writeHead(302, { location: 'http://169.254.169.254/' }).end();
    return true;
  }
  return false;
}

const server = createServer(async (request, response) => {
  if (request.url === '/test/rotate') {
    provider = make(provider.issuer);
    return response.end();
  }
  if (request.url === '/test/ttl') {
    ttl = JSON.parse(await body(request)).ttl;
    return response.end();
  }
  if (request.url === '/test/tokens') {
    answers = JSON.parse(await body(request)).answers;
    return response.end();
  }
  if (request.url.startsWith('/token') && !answers) return response.writeHead(503).end();
  if (request.url === '/test/jwks') {
    if (request.method === 'POST') mode = JSON.parse(await body(request)).mode;
    return response.end(JSON.stringify({ fetches }));
  }
  if (request.url === '/jwks') {
    fetches += 1;
    if (serveKeys(request, response)) return undefined;
  }
  return provider.callback()(request, response);
});
server.listen(0, '127.0.0.1', () => {
  provider = make(`http://127.0.0.1:${server.address().port}`);
  console.log(JSON.stringify({ issuer: provider.issuer }));
});
process.stdin.on('end', () => process.exit()).resume();
