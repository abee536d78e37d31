//! Outbound proxies: those of `sources.yml`, otherwise those of the environment.

use std::collections::BTreeSet;
use std::fmt;

use serde::Deserialize;
use url::Url;

/// The variables by which an environment names proxies. The HTTP client reads them by itself; upper case takes
/// precedence.
const VARIABLES: [&str; 6] = ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];

/// Outbound proxies, as `http://[user:password@]host[:port]`.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proxies {
    /// The proxy for `http` addresses.
    pub http_proxy: Option<String>,
    /// The proxy for `https` addresses.
    pub https_proxy: Option<String>,
    /// Hosts that are asked directly, separated by commas.
    pub no_proxy: Option<String>,
}

/// A field with an address that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("proxies: {0} is not an address: want for instance http://proxy.example:3128")]
pub(crate) struct ProxyError(&'static str);

/// Shows no addresses, which may hold a password.
impl fmt::Debug for Proxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Proxies(…)")
    }
}

impl Proxies {
    /// Checks whether the addresses can be used.
    ///
    /// # Errors
    /// The field that cannot be used, without its content.
    pub(crate) fn check(&self) -> Result<(), ProxyError> {
        for (name, address) in [("http_proxy", &self.http_proxy), ("https_proxy", &self.https_proxy)] {
            if filled(address).is_some_and(|address| parse(address).is_none()) {
                return Err(ProxyError(name));
            }
        }
        Ok(())
    }

    /// The proxies in the HTTP client's form.
    ///
    /// # Errors
    /// When the client does not accept an address.
    pub(crate) fn for_client(&self) -> reqwest::Result<Vec<reqwest::Proxy>> {
        let direct = self.no_proxy.as_deref().and_then(reqwest::NoProxy::from_string);
        let http = filled(&self.http_proxy).and_then(parse).map(reqwest::Proxy::http).transpose()?;
        let https = filled(&self.https_proxy).and_then(parse).map(reqwest::Proxy::https).transpose()?;
        Ok([http, https].into_iter().flatten().map(|proxy| proxy.no_proxy(direct.clone())).collect())
    }

    /// The hosts of the proxies. The installation itself chose them, so their addresses need no further permission.
    pub(crate) fn hosts(&self) -> BTreeSet<String> {
        hosts([&self.http_proxy, &self.https_proxy].into_iter().flatten().map(String::as_str))
    }
}

/// The hosts of the environment's proxies.
pub(crate) fn hosts_of_environment() -> BTreeSet<String> {
    let addresses: Vec<String> = VARIABLES.iter().filter_map(|name| std::env::var(name).ok()).collect();
    hosts(addresses.iter().map(String::as_str))
}

fn hosts<'a>(addresses: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    addresses.filter_map(|address| parse(address)?.host_str().map(str::to_owned)).collect()
}

fn filled(address: &Option<String>) -> Option<&str> {
    address.as_deref().filter(|address| !address.trim().is_empty())
}

/// Parses an address of a proxy; `proxy:3128` stands for `http://proxy:3128`.
fn parse(address: &str) -> Option<Url> {
    let address = address.trim();
    let url = match address.contains("://") {
        true => Url::parse(address),
        false => Url::parse(&format!("http://{address}")),
    };
    url.ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn https(address: &str) -> Proxies {
        Proxies { https_proxy: Some(address.to_owned()), ..Proxies::default() }
    }

    #[test]
    fn addresses_with_and_without_a_scheme() {
        for address in
            ["http://proxy.example:3128", "proxy.example:3128", "http://u:p@proxy.example", " proxy.example/ "]
        {
            let proxies = https(address);
            assert_eq!(proxies.check(), Ok(()), "{address}");
            assert_eq!(proxies.hosts(), BTreeSet::from(["proxy.example".to_owned()]), "{address}");
            assert_eq!(proxies.for_client().map(|list| list.len()).ok(), Some(1), "{address}");
        }
        assert_eq!(https("").for_client().map(|list| list.len()).ok(), Some(0));
    }

    #[test]
    fn i4_what_is_no_address_is_named_and_not_quoted() {
        for address in ["ftp://u:sekret@proxy", "http://", "http://u:sekret@", "socks5://u:sekret@proxy"] {
            let error = https(address).check().expect_err(address);
            let text = error.to_string();
            assert!(text.contains("https_proxy") && !text.contains("sekret"), "{text}");
        }
        assert!(!format!("{:?}", https("http://u:sekret@proxy")).contains("sekret"));
    }
}
