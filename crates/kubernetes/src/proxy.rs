//! The proxy between a kubeconfig's API server and us, by the rules of kubectl. A Pod's own service account never has one.
//!
//! kube compares `NO_PROXY` with the proxy itself and not with the API server (5.0.0), so its choice is replaced.

use http::Uri;
use hyper_util::client::proxy::matcher::Matcher;
use kube::Config;
use kube::config::Kubeconfig;

/// The address of a proxy cannot be used. It may hold a password, so it is not quoted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{from} is not the address of a proxy: want for instance http://proxy.example:3128")]
pub struct ProxyError {
    /// The variable, or the field of the kubeconfig.
    from: String,
}

/// Sets the proxy of a configuration that was made from a context of a kubeconfig, by default from its current one.
///
/// # Errors
/// When the kubeconfig or the environment names a proxy by what is not an address.
pub fn set_proxy(config: &mut Config, kubeconfig: &Kubeconfig, context: Option<&str>) -> Result<(), ProxyError> {
    let variable = |name: &str| std::env::var(name).ok();
    config.proxy_url = proxy(&config.cluster_url, of_cluster(kubeconfig, context), variable)?;
    Ok(())
}

/// The proxy that a kubeconfig names for the cluster of a context.
fn of_cluster<'k>(kubeconfig: &'k Kubeconfig, context: Option<&str>) -> Option<&'k str> {
    let context = context.or(kubeconfig.current_context.as_deref())?;
    let context = kubeconfig.contexts.iter().find(|one| one.name == context)?.context.as_ref()?;
    let cluster = kubeconfig.clusters.iter().find(|one| one.name == context.cluster)?.cluster.as_ref()?;
    cluster.proxy_url.as_deref()
}

/// The proxy of an API server: that of its cluster; otherwise that of the environment, unless `NO_PROXY` or a loopback address leave it out.
fn proxy(
    server: &Uri,
    of_cluster: Option<&str>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<Uri>, ProxyError> {
    let filled = |text: &str| (!text.trim().is_empty()).then(|| text.trim().to_owned());
    if let Some(address) = of_cluster.and_then(filled) {
        return parse("proxy-url", &address).map(Some);
    }
    let names = match server.scheme_str() {
        Some("http") => ["HTTP_PROXY", "http_proxy"],
        _ => ["HTTPS_PROXY", "https_proxy"],
    };
    let first = |names: [&'static str; 2]| names.into_iter().find_map(|name| Some((name, filled(&variable(name)?)?)));
    let Some((name, address)) = first(names) else { return Ok(None) };
    let no_proxy = first(["NO_PROXY", "no_proxy"]).map(|(_, hosts)| hosts).unwrap_or_default();
    if is_loopback(server.host().unwrap_or_default()) || is_left_out(server, &no_proxy) {
        return Ok(None);
    }
    parse(name, &address).map(Some)
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// Whether `NO_PROXY` names an API server: hosts, networks and domains; `*` stands for all. An entry may have a port.
fn is_left_out(server: &Uri, no_proxy: &str) -> bool {
    let port = format!(":{}", server.port_u16().unwrap_or(443));
    let hosts: Vec<&str> =
        no_proxy.split(',').map(|entry| entry.trim()).map(|entry| entry.strip_suffix(&port).unwrap_or(entry)).collect();
    Matcher::builder().all("http://proxy.invalid").no(hosts.join(",")).build().intercept(server).is_none()
}

/// Parses an address; `proxy:3128` stands for `http://proxy:3128`.
fn parse(from: &str, address: &str) -> Result<Uri, ProxyError> {
    let whole = if address.contains("://") { address.to_owned() } else { format!("http://{address}") };
    let uri = whole.parse::<Uri>().ok().filter(|uri| uri.host().is_some_and(|host| !host.is_empty()));
    let is_known = |uri: &Uri| matches!(uri.scheme_str(), Some("http" | "https" | "socks5"));
    uri.filter(is_known).ok_or_else(|| ProxyError { from: from.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(server: &str, of_cluster: Option<&str>, variables: &[(&str, &str)]) -> Result<Option<String>, String> {
        let variable = |name: &str| variables.iter().find(|one| one.0 == name).map(|one| one.1.to_owned());
        let found = proxy(&server.parse().expect("an address"), of_cluster, variable);
        found.map(|found| found.map(|uri| uri.to_string())).map_err(|error| error.to_string())
    }

    #[test]
    fn the_cluster_comes_first_and_then_the_environment() {
        let server = "https://api.example:6443";
        let variables = [("HTTPS_PROXY", "http://u:p@proxy:3128"), ("NO_PROXY", "other.example")];
        assert_eq!(chosen(server, None, &[]), Ok(None));
        assert_eq!(chosen(server, None, &variables), Ok(Some("http://u:p@proxy:3128/".to_owned())));
        assert_eq!(chosen(server, None, &[("https_proxy", "proxy:3128")]), Ok(Some("http://proxy:3128/".to_owned())));
        assert_eq!(chosen(server, None, &[("HTTP_PROXY", "proxy:3128")]), Ok(None));
        assert_eq!(chosen(server, None, &[("HTTPS_PROXY", " ")]), Ok(None));
        let of_cluster = Some("socks5://proxy:1080");
        let all = [("HTTPS_PROXY", "http://proxy:3128"), ("NO_PROXY", "*")];
        assert_eq!(chosen(server, of_cluster, &all), Ok(Some("socks5://proxy:1080/".to_owned())));
        assert_eq!(chosen(server, Some(""), &all), Ok(None));
    }

    #[test]
    fn no_proxy_is_about_the_api_server() {
        let with = |server: &str, no_proxy: &str| {
            chosen(server, None, &[("HTTPS_PROXY", "http://proxy:3128"), ("NO_PROXY", no_proxy)]).expect("an address")
        };
        for (server, no_proxy) in [
            ("https://api.example:6443", "api.example"),
            ("https://api.example:6443", "x, .example"),
            ("https://api.example:6443", "api.example:6443"),
            ("https://10.1.2.3:6443", "10.0.0.0/8"),
            ("https://api.example:6443", "*"),
            ("https://127.0.0.1:6443", ""),
            ("https://[::1]:6443", ""),
            ("https://localhost:6443", ""),
        ] {
            assert_eq!(with(server, no_proxy), None, "{server} {no_proxy}");
        }
        for (server, no_proxy) in [
            ("https://api.example:6443", "proxy"),
            ("https://api.example:6443", "api.example:443"),
            ("https://10.1.2.3", "192.168.0.0/16"),
        ] {
            assert!(with(server, no_proxy).is_some(), "{server} {no_proxy}");
        }
    }

    #[test]
    fn what_is_no_address_is_named_and_not_quoted() {
        for address in ["ftp://u:sekret@proxy", "http://", "http://u:sekret@"] {
            let told = chosen("https://api.example", None, &[("HTTPS_PROXY", address)]).expect_err(address);
            assert!(told.starts_with("HTTPS_PROXY is not the address") && !told.contains("sekret"), "{told}");
        }
    }

    #[test]
    fn the_cluster_is_that_of_the_context() {
        let kubeconfig = Kubeconfig::from_yaml(
            "{current-context: a, contexts: [{name: a, context: {cluster: x}}, {name: b, context: {cluster: y}}], clusters: [{name: x, \
             cluster: {server: 'https://x'}}, {name: y, cluster: {server: 'https://y', proxy-url: 'http://proxy:1'}}]}",
        )
        .expect("a kubeconfig");
        assert_eq!(of_cluster(&kubeconfig, None), None);
        assert_eq!(of_cluster(&kubeconfig, Some("b")), Some("http://proxy:1"));
    }
}
