// Sign-in at OpenID providers, which the API describes as `{issuer, client_id, scopes, label}`: the authorization code flow with PKCE (RFC 7636). The console is a public client.

// Kept while the browser is at the provider: the issuer, the state and the verifier of this sign-in.
const PENDING = "leveret.signin";
// The issuer of the provider at which the session began, where signing out ends, too.
const AT_PROVIDER = "leveret.provider";

const page = () => new URL(".", document.baseURI).href;

function encode(bytes) {
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

const random = () => encode(crypto.getRandomValues(new Uint8Array(32)));

async function request(url, options) {
  let response;
  try {
    response = await fetch(url, { ...options, credentials: "omit", cache: "no-store" });
  } catch {
    throw new Error(`the provider ${new URL(url).origin} does not answer, or does not allow requests of this page`);
  }
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) {
    throw new Error(`the provider refused the sign-in: ${answer.error_description ?? answer.error ?? response.status}`);
  }
  return answer;
}

async function discover({ issuer }) {
  const found = await request(`${issuer.replace(/\/$/, "")}/.well-known/openid-configuration`);
  if (found.issuer !== issuer) {
    throw new Error(`the provider names itself ${found.issuer}; expected ${issuer}`);
  }
  return found;
}

/** Leaves for a provider's page. */
export async function beginSignIn(provider) {
  if (!crypto.subtle) {
    throw new Error("the browser allows this sign-in only over HTTPS, or on this machine");
  }
  const { authorization_endpoint: endpoint } = await discover(provider);
  const verifier = random();
  const state = random();
  const challenge = encode(new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(verifier))));
  sessionStorage.setItem(PENDING, JSON.stringify({ issuer: provider.issuer, state, verifier, hash: location.hash }));
  const target = new URL(endpoint);
  if (target.protocol !== "https:" && target.protocol !== "http:") {
    throw new Error("the provider has no page to sign in");
  }
  const parameters = {
    response_type: "code",
    client_id: provider.client_id,
    redirect_uri: page(),
    scope: provider.scopes,
    state,
    code_challenge: challenge,
    code_challenge_method: "S256",
  };
  for (const [name, value] of Object.entries(parameters)) {
    target.searchParams.set(name, value);
  }
  location.assign(target.href);
}

/** Returns `{token, refresh_token}` of a sign-in from which the browser comes back, or null if it does not. */
export async function finishSignIn(providers) {
  const found = new URLSearchParams(location.search);
  const kept = JSON.parse(sessionStorage.getItem(PENDING) ?? "null");
  if (!found.has("state")) {
    return null;
  }
  sessionStorage.removeItem(PENDING);
  history.replaceState(null, "", page());
  if (kept?.hash) {
    location.replace(kept.hash);
  }
  const provider = providers.find(({ issuer }) => issuer === kept?.issuer);
  if (!provider || found.get("state") !== kept.state || (found.get("iss") ?? provider.issuer) !== provider.issuer) {
    throw new Error("this sign-in was not begun here; sign in again");
  }
  if (!found.has("code")) {
    throw new Error(`the provider refused the sign-in: ${found.get("error_description") ?? found.get("error")}`);
  }
  const { token_endpoint: endpoint } = await discover(provider);
  const answer = await request(endpoint, {
    method: "POST",
    body: new URLSearchParams({
      grant_type: "authorization_code",
      code: found.get("code"),
      redirect_uri: page(),
      client_id: provider.client_id,
      code_verifier: kept.verifier,
    }),
  });
  sessionStorage.setItem(AT_PROVIDER, provider.issuer);
  return { token: answer.access_token, refresh_token: answer.refresh_token ?? "" };
}

/** Leaves for the page of a provider that signs out, if this tab has signed in there. */
export async function endSignIn(providers) {
  const provider = providers.find(({ issuer }) => issuer === sessionStorage.getItem(AT_PROVIDER));
  sessionStorage.removeItem(AT_PROVIDER);
  if (!provider) {
    return;
  }
  const { end_session_endpoint: endpoint } = await discover(provider).catch(() => ({}));
  if (endpoint && /^https?:/.test(endpoint)) {
    const target = new URL(endpoint);
    target.searchParams.set("client_id", provider.client_id);
    target.searchParams.set("post_logout_redirect_uri", page());
    location.assign(target.href);
  }
}
