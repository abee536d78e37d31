//! Makes the header that a registry wants from a challenge and a login.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Method};
use portcullis_contract::Reason;
use portcullis_util::lock;
use serde::Deserialize;
use url::Url;

use super::Image;
use super::challenge::Challenge;
use crate::{Credential, DockerConfig, FetchError, Redirects, Request, Web, Whole, client, host_of};

/// Largest answer of a token service, in bytes. A token is sent in a header, and servers take much smaller ones than this.
const LARGEST: u64 = 64 << 10;
/// How long a token is valid if its service does not say.
const DEFAULT_LIFE: Duration = Duration::from_secs(60);
/// Most tokens that are kept.
const MAX_TOKENS: usize = 256;

/// The scope of a token: host, repository, and whether it is for a push.
type Scope = (String, String, bool);

/// The headers that worked, until they expire or the file of logins changes.
#[derive(Default)]
pub(super) struct Logins {
    known: Mutex<HashMap<Scope, Known>>,
}

struct Known {
    header: HeaderValue,
    until: Instant,
    file: Option<Stamp>,
    /// The error for when a token that was issued without a login is refused.
    without_login: Option<FetchError>,
}

type Stamp = (u64, u64, i64, i64);

#[derive(Deserialize)]
struct TokenAnswer {
    token: Option<String>,
    access_token: Option<String>,
    expires_in: Option<u64>,
}

impl Logins {
    /// The header that worked last, if it has not expired and the file of logins has not changed.
    pub(super) fn known(&self, docker: Option<&DockerConfig>, image: &Image, push: bool) -> Option<HeaderValue> {
        let file = docker.and_then(DockerConfig::stamp);
        let known = lock(&self.known);
        let known = known.get(&scope(image, push))?;
        (known.until > Instant::now() && known.file == file).then(|| known.header.clone())
    }

    /// Drops a header that did not work. Returns what is missing if it was made without a login.
    pub(super) fn forget(&self, image: &Image, push: bool) -> Option<FetchError> {
        let mut known = lock(&self.known);
        known.remove(&scope(image, push))?.without_login
    }

    /// Answers a challenge with a header.
    ///
    /// # Errors
    /// `CredentialsMissing` without a login, `Unauthorized` if a login is refused, or the error of the token service.
    pub(super) async fn log_in(
        &self,
        web: &Web,
        docker: Option<&DockerConfig>,
        image: &Image,
        push: bool,
        challenge: Option<Challenge>,
    ) -> Result<HeaderValue, FetchError> {
        // Taken before the file is read, so that a file that changes in between is read again.
        let file = docker.and_then(DockerConfig::stamp);
        let login = match docker {
            Some(docker) => docker.credential(&image.host, &image.repository).await,
            None => Ok(None),
        };
        let mut without_login = None;
        let (header, life) = match (challenge, login) {
            (_, Ok(Some(Credential::Bearer(token)))) => (bearer(&token)?, DEFAULT_LIFE),
            (Some(Challenge::Basic) | None, Ok(Some(Credential::Basic { user, password }))) => {
                (basic(&user, &password)?, DEFAULT_LIFE)
            }
            (Some(Challenge::Basic) | None, Ok(Some(Credential::Identity(_)))) => {
                let text =
                    format!("{} wants a user and a password, and the login for it is an identity token", image.host);
                return Err(FetchError::new(Reason::Unauthorized, text));
            }
            (Some(Challenge::Bearer { realm, service, scope }), login) => {
                // Without a login, a token service may still give a token for public repositories.
                let (login, trouble) = match login {
                    Ok(Some(login)) => (Some(login), None),
                    Ok(None) => (None, Some(missing(image, docker))),
                    Err(error) => (None, Some(wanted_by(image, &error))),
                };
                let ask = TokenRequest {
                    realm,
                    service,
                    scope: scope.unwrap_or_else(|| wanted(image, push)),
                    login: login.as_ref(),
                };
                match (ask.token(web, image).await, trouble) {
                    (Ok(found), trouble) => {
                        without_login = trouble;
                        found
                    }
                    (Err(error), Some(trouble)) if error.reason == Reason::Unauthorized => return Err(trouble),
                    (Err(error), _) => return Err(error),
                }
            }
            (_, Ok(None)) => return Err(missing(image, docker)),
            (_, Err(error)) => return Err(wanted_by(image, &error)),
        };
        let mut known = lock(&self.known);
        if known.len() >= MAX_TOKENS {
            known.clear();
        }
        known.insert(
            scope(image, push),
            Known { header: header.clone(), until: Instant::now() + life, file, without_login },
        );
        Ok(header)
    }
}

struct TokenRequest<'a> {
    realm: String,
    service: Option<String>,
    scope: String,
    login: Option<&'a Credential>,
}

impl TokenRequest<'_> {
    async fn token(self, web: &Web, image: &Image) -> Result<(HeaderValue, Duration), FetchError> {
        let no_service = |text: String| FetchError::new(Reason::Unauthorized, text);
        let mut url = Url::parse(&self.realm)
            .map_err(|_| no_service(format!("{} names a token service that is not an address", image.host)))?;
        // A login is never sent to an address at which the registry itself would not be asked.
        if url.scheme() != "https" && !web.is_plain(&image.host) {
            return Err(no_service(format!("{} names a token service without TLS", image.host)));
        }
        let service = self.service.iter().map(|service| ("service", service.as_str()));
        let common = service.chain([("scope", self.scope.as_str())]);
        let request = match self.login {
            Some(Credential::Identity(token)) => {
                let mut form = url::form_urlencoded::Serializer::new(String::new());
                form.extend_pairs(common)
                    .append_pair("grant_type", "refresh_token")
                    .append_pair("client_id", "portcullis");
                let body = form.append_pair("refresh_token", token).finish();
                let mut request =
                    Request { method: Method::POST, body: Some(body.into()), ..Request::get(url.clone()) };
                request.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
                request
            }
            login => {
                url.query_pairs_mut().extend_pairs(common);
                let mut request = Request::get(url.clone());
                if let Some(Credential::Basic { user, password }) = login {
                    request.headers.insert(AUTHORIZATION, basic(user, password)?);
                }
                request
            }
        };
        let host = host_of(&url);
        // A token is not a module, so its redirects may lead anywhere.
        let mut request = Request { redirects: Redirects::Anywhere, ..request };
        request.headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        let answer = web.send(&request).await.map_err(|error| FetchError {
            // If the token service has a forbidden address, that is the registry's doing, like a redirect.
            reason: if error.reason == Reason::SourceNotAllowed { Reason::RedirectRefused } else { error.reason },
            ..error
        })?;
        if !answer.status().is_success() {
            let mut error = client::refused(&host, answer.status(), answer.headers());
            if matches!(error.reason, Reason::NotFound) {
                error.reason = Reason::Unauthorized;
            }
            error.message = format!("the token service of {}: {}", image.host, error.message);
            return Err(error);
        }
        let mut body = Whole::new("the answer of the token service", LARGEST).refused_as(Reason::Unauthorized);
        web.body(&host, answer, &mut body).await?;
        let not_a_token = || no_service(format!("the token service {host} gives something that is not a token"));
        let answer: TokenAnswer = serde_json::from_slice(&body.finish().0).map_err(|_| not_a_token())?;
        let token = answer.token.or(answer.access_token).filter(|token| !token.is_empty()).ok_or_else(not_a_token)?;
        // Some seconds less, to allow for the time of the request.
        let life = answer.expires_in.map_or(DEFAULT_LIFE, Duration::from_secs).saturating_sub(Duration::from_secs(5));
        Ok((bearer(&token).map_err(|_| not_a_token())?, life.min(Duration::from_secs(3600))))
    }
}

fn wanted(image: &Image, push: bool) -> String {
    format!("repository:{}:{}", image.repository, if push { "pull,push" } else { "pull" })
}

fn scope(image: &Image, push: bool) -> Scope {
    (image.host.clone(), image.repository.clone(), push)
}

fn missing(image: &Image, docker: Option<&DockerConfig>) -> FetchError {
    let host = &image.host;
    let text = match docker {
        Some(docker) => format!("{host} wants a login, and {} has none for it", docker.path().display()),
        None => format!("{host} wants a login: give the folder of a Docker config.json with --docker-config"),
    };
    FetchError::new(Reason::CredentialsMissing, text)
}

/// The error when the file gave no login, for users who did not know that one is needed.
fn wanted_by(image: &Image, error: &FetchError) -> FetchError {
    FetchError::new(error.reason, format!("{} wants a login: {}", image.host, error.message))
}

fn basic(user: &str, password: &str) -> Result<HeaderValue, FetchError> {
    secret(&format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))))
}

fn bearer(token: &str) -> Result<HeaderValue, FetchError> {
    secret(&format!("Bearer {token}"))
}

fn secret(text: &str) -> Result<HeaderValue, FetchError> {
    let unusable = |_| FetchError::new(Reason::Unauthorized, "the login holds characters that no header may have");
    let mut value = HeaderValue::from_str(text).map_err(unusable)?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_server::{serve, web};

    #[tokio::test]
    async fn a_token_service_that_gives_too_much_is_not_a_module_that_is_too_large() {
        let answers = [("large", vec![b' '; (64 << 10) + 1]), ("token", br#"{"token": "t"}"#.to_vec())];
        let (host, _) = serve(answers.map(|(path, body)| (path.to_owned(), body)).into()).await;
        let (web, image) = (web(&host), format!("{host}/a:v1").parse().expect("a name"));
        let token = async |path: &str| {
            let realm = format!("http://{host}/{path}");
            TokenRequest { realm, service: None, scope: String::new(), login: None }.token(&web, &image).await
        };
        let error = token("large").await.expect_err("refused");
        assert_eq!(error.reason, Reason::Unauthorized);
        assert!(error.message.contains("the answer of the token service"), "{error}");
        assert_eq!(token("token").await.map(|(header, _)| header), bearer("t"));
    }
}
