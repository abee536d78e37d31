use super::*;
use crate::oci::Image;

fn web(change: impl FnOnce(&mut WebSettings)) -> Web {
    let mut settings = WebSettings {
        header: Duration::from_secs(1),
        total: Duration::from_secs(1),
        lowest_rate: 1024,
        authorities: None,
        plain_hosts: BTreeSet::new(),
        allowed: Vec::new(),
        guard: Guard::default(),
        sources: None,
        name_server: None,
        user_agent: "tests",
    };
    change(&mut settings);
    Web::new(settings)
}

fn check(web: &Web, url: &str) -> Result<(), Reason> {
    web.check(&Url::parse(url).expect("a URL")).map_err(|error| error.reason)
}

#[test]
fn plain_http_only_where_it_is_allowed() {
    let web = web(|settings| settings.plain_hosts = BTreeSet::from(["example.com:8080".into()]));
    assert_eq!(check(&web, "http://example.com:8080/a"), Ok(()));
    assert_eq!(check(&web, "http://example.com:8081/a"), Err(Reason::SourceNotAllowed));
    assert_eq!(check(&web, "https://example.com/a"), Ok(()));
}

#[test]
fn x05_numbers_are_addresses_in_every_form() {
    let web = web(|_| ());
    for host in
        ["127.0.0.1", "2130706433", "0x7f.1", "017700000001", "127.1", "[::1]", "[::ffff:127.0.0.1]", "169.254.169.254"]
    {
        assert_eq!(check(&web, &format!("https://{host}/a")), Err(Reason::SourceNotAllowed), "{host}");
    }
}

#[test]
fn l23_a_list_of_sources_limits_them() {
    let web = web(|settings| settings.allowed = vec!["https://example.com/policies/*".into()]);
    let allowed = |address: &str| web.check_allowed(address, "h").map_err(|error| error.reason);
    assert_eq!(allowed("https://example.com/policies/a.wasm"), Ok(()));
    assert_eq!(allowed("https://example.com.evil.org/policies/a"), Err(Reason::SourceNotAllowed));
    assert_eq!(allowed("https://example.com/other"), Err(Reason::SourceNotAllowed));
}

#[test]
fn docker_hub_is_one_registry_by_either_name() {
    let allows = |pattern: &str, name: &str| {
        let web = web(|settings| settings.allowed = vec![pattern.into()]);
        let image: Image = name.parse().expect("a name");
        web.check_allowed(&image.address(), &image.host).is_ok()
    };
    for pattern in ["registry://docker.io/org/*", "registry://index.docker.io/org/*"] {
        for name in ["org/a", "docker.io/org/a", "index.docker.io/org/a:v1"] {
            assert!(allows(pattern, name), "{pattern} {name}");
        }
        assert!(!allows(pattern, "docker.io/other/a"));
        assert!(!allows(pattern, "docker.io/a"));
    }
    for name in ["busybox", "docker.io/busybox", "index.docker.io/busybox"] {
        assert!(allows("registry://docker.io/library/busybox", name), "{name}");
        assert!(!allows("registry://docker.io/busybox", name), "{name}");
    }
}

#[test]
fn a_file_of_sources_counts_before_its_first_use_even_if_it_is_gone_by_then() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("sources.yml");
    std::fs::write(&path, "allowed_sources: ['https://example.com/*']\ninsecure_sources: [example.com]\n")
        .expect("writes");
    let file = SourcesFile::read(&path).expect("good");
    std::fs::remove_file(&path).expect("removes");
    let web = web(|settings| settings.sources = Some(file));
    let allowed = |address: &str| web.check_allowed(address, "h").map_err(|error| error.reason);
    assert_eq!(allowed("https://example.org/a"), Err(Reason::SourceNotAllowed));
    assert_eq!(allowed("https://example.com/a"), Ok(()));
    assert!(web.is_plain("example.com") && !web.is_plain("example.org"));
    std::fs::write(&path, "allowed_sources: ['https://example.org/*']\n").expect("writes");
    assert_eq!(allowed("https://example.org/a"), Ok(()), "it is read again");
    std::fs::write(&path, "[").expect("writes");
    assert_eq!(allowed("https://example.com/a"), Err(Reason::SourceNotAllowed), "the last content counts");
}

#[test]
fn authorities_count_until_the_file_holds_others() {
    let certificate = |name: &str| {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::new(vec![name.to_owned()]).expect("a name");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.self_signed(&key).expect("a certificate").pem().into_bytes()
    };
    let (folder, first, second) = (tempfile::tempdir().expect("a folder"), certificate("one"), certificate("two"));
    let path = folder.path().join("ca.pem");
    let web = web(|settings| settings.authorities = Some(path.clone()));
    let trusted = || web.authorities().map_err(|error| error.reason);
    for useless in ["", "no PEM", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        std::fs::write(&path, useless).expect("writes");
        assert_eq!(trusted(), Err(Reason::TLSFailed), "{useless}");
        std::fs::write(&path, &first).expect("writes");
        assert_eq!(
            self::web(|settings| settings.authorities = Some(path.clone())).authorities(),
            Ok(Some(first.clone()))
        );
    }
    assert_eq!(trusted(), Ok(Some(first.clone())));
    for useless in ["", "no PEM", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        std::fs::write(&path, useless).expect("writes");
        assert_eq!(trusted(), Ok(Some(first.clone())), "{useless}");
    }
    std::fs::remove_file(&path).expect("removes");
    assert_eq!(trusted(), Ok(Some(first)));
    std::fs::write(&path, &second).expect("writes");
    assert_eq!(trusted(), Ok(Some(second)));
}

#[test]
fn z17_redirects_lead_where_modules_may_come_from() {
    let lists: [&[&str]; 2] = [&["https://example.com/policies/*"], &["registry://example.com/policies/*"]];
    let allowed = |list: &[&str], to: &str| {
        let web = web(|settings| settings.allowed = list.iter().map(|&one| one.into()).collect());
        web.check_redirect(&Url::parse(to).expect("a URL")).map_err(|error| error.reason)
    };
    let refused = Err(Reason::SourceNotAllowed);
    assert_eq!(allowed(lists[0], "https://example.com/policies/b.wasm"), Ok(()));
    assert_eq!(allowed(lists[0], "https://example.com/policies/../b.wasm"), refused);
    assert_eq!(allowed(lists[0], "https://example.org/policies/b.wasm"), refused);
    assert_eq!(allowed(lists[1], "https://example.com/v2/policies/a/manifests/v1"), Ok(()));
    assert_eq!(allowed(lists[1], "https://example.com/v2/others/a/manifests/v1"), refused);
    assert_eq!(
        allowed(lists[1], "https://example.com/v2/policies/a/manifests/v1/../../../../others/manifests/v1"),
        refused
    );
    assert_eq!(allowed(&[], "https://example.org/b.wasm"), Ok(()), "no list, no limit");
}

#[test]
fn l15_redirects_to_less_are_refused() {
    let web = web(|settings| settings.plain_hosts = BTreeSet::from(["a".into()]));
    let redirected = |from: &str, to: &'static str| {
        let mut headers = HeaderMap::new();
        headers.insert(LOCATION, http::HeaderValue::from_static(to));
        web.redirected(&Url::parse(from).expect("a URL"), &headers).map(|url| url.to_string())
    };
    assert_eq!(redirected("https://a/b/c", "../d").as_deref(), Ok("https://a/d"));
    for to in ["http://a/b", "ftp://a/b", "https://u:p@a/b", "http://", "https://10.0.0.1/"] {
        assert_eq!(redirected("https://a/b", to).expect_err(to).reason, Reason::RedirectRefused);
    }
}
