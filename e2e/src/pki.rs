//! The certificate authority of a cluster and its certificates: one identity for each end of each connection.

use portcullis_contract::Digest;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

use crate::layout::Layout;
use crate::{Error, files, node};

/// The group of administrators.
const ADMINISTRATORS: &str = "system:masters";

/// The file with the token of the administrator `admin`, who has a certificate too: an API server verifies a certificate again for each
/// request, and a token costs it nothing.
pub(crate) const TOKEN: &str = "admin.token";

/// The file from which API servers know that token. Its format: <https://kubernetes.io/docs/reference/access-authn-authz/authentication/#static-token-file>.
pub(crate) const TOKENS: &str = "tokens.csv";

/// Makes all keys and certificates of a cluster.
pub(crate) fn make(layout: &Layout) -> Result<(), Error> {
    files::make_folder(&layout.pki(""))?;
    let authority = Authority::new("portcullis tests")?;
    write(layout, "ca", &authority.certificate, &authority.key)?;
    for identity in identities(layout) {
        let (certificate, key) = authority.sign(&identity)?;
        write(layout, identity.file, &certificate, &key)?;
    }

    let token = Digest::of(&KeyPair::generate()?.serialize_der()).hex();
    files::write(&layout.pki(TOKEN), &token)?;
    files::write(&layout.pki(TOKENS), &format!("{token},admin,admin,\"{ADMINISTRATORS}\"\n"))?;

    // Service account tokens are signed by a key without a certificate.
    let key = KeyPair::generate()?;
    files::write(&layout.pki("service-accounts.key"), &key.serialize_pem())?;
    files::write(&layout.pki("service-accounts.pub"), &key.public_key_pem())
}

fn write(layout: &Layout, name: &str, certificate: &str, key: &str) -> Result<(), Error> {
    files::write(&layout.pki(&format!("{name}.crt")), certificate)?;
    files::write(&layout.pki(&format!("{name}.key")), key)
}

/// The holder of a certificate.
#[derive(Debug, PartialEq, Eq)]
struct Identity {
    /// The name of its files, without `.crt` and `.key`.
    file: &'static str,
    /// The user of a client.
    name: &'static str,
    /// The group of a client.
    group: Option<&'static str>,
    /// The names and addresses of a server.
    hosts: Vec<String>,
}

fn identities(layout: &Layout) -> Vec<Identity> {
    let client = |file, name, group| Identity { file, name, group, hosts: Vec::new() };
    let first = layout.first_host().to_string();
    let mut api: Vec<String> = ["", ".default", ".default.svc", ".default.svc.cluster.local"]
        .map(|domain| format!("kubernetes{domain}"))
        .to_vec();
    api.extend(["localhost".to_owned(), layout.network.kubernetes_service().to_string()]);
    api.extend(layout.api_server_numbers().map(|number| layout.api_server(number).ip().to_string()));
    let mut all = vec![
        // Its JSON interface is a client of its own; it connects from 127.0.0.1 if the cluster is on loopback addresses.
        Identity { file: "etcd", name: "etcd", group: None, hosts: vec![first.clone(), "127.0.0.1".to_owned()] },
        Identity { file: "kube-apiserver", name: "kube-apiserver", group: None, hosts: api },
        Identity {
            file: "kube-controller-manager-server",
            name: "kube-controller-manager",
            group: None,
            hosts: vec![first],
        },
        Identity {
            file: "proxy",
            name: "proxy",
            group: None,
            hosts: layout.proxies().map(|address| address.ip().to_string()).collect(),
        },
        client("etcd-client", "kube-apiserver", None),
        client("front-proxy", "front-proxy", None),
        client("kube-controller-manager", "system:kube-controller-manager", None),
        client("admin", "admin", Some(ADMINISTRATORS)),
    ];
    if layout.node.is_some() {
        let hosts = vec![node::NAME.to_owned(), layout.network.node().to_string()];
        all.extend([
            // The kubelet is a client of API servers, and a server to them.
            Identity { file: "kubelet", name: "system:node:node-1", group: Some("system:nodes"), hosts },
            client("kube-apiserver-kubelet-client", "kube-apiserver-kubelet-client", None),
            client("kube-scheduler", "system:kube-scheduler", None),
            client("kube-proxy", "system:kube-proxy", None),
        ]);
    }
    all
}

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
    key: String,
}

impl Authority {
    fn new(name: &str) -> Result<Self, Error> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self { certificate, key: key.serialize_pem(), issuer: Issuer::new(params, key) })
    }

    /// The certificate and its key, as PEM. etcd uses one certificate as server and as peer, so servers are clients too.
    fn sign(&self, identity: &Identity) -> Result<(String, String), Error> {
        let mut params = CertificateParams::new(identity.hosts.clone())?;
        params.distinguished_name.push(DnType::CommonName, identity.name);
        if let Some(group) = identity.group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if !identity.hosts.is_empty() {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        Ok((params.signed_by(&key, &self.issuer)?.pem(), key.serialize_pem()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Node;
    use crate::network::{Kind, Network};

    fn layout(folder: &std::path::Path) -> Layout {
        let node = Some(Node::new(2, 1));
        Layout {
            folder: folder.to_owned(),
            network: Network::new(2, Kind::Routed),
            api_servers: 2,
            node,
            etcd_quota: None,
        }
    }

    #[test]
    fn an_api_server_is_known_by_all_its_addresses() {
        let identities = identities(&layout("x".as_ref()));
        let api = identities.iter().find(|identity| identity.file == "kube-apiserver").unwrap();
        for host in ["kubernetes.default.svc", "198.19.2.1", "198.18.2.1", "198.18.2.2"] {
            assert!(api.hosts.iter().any(|known| known == host), "{host} is not among {:?}", api.hosts);
        }
    }

    #[test]
    fn one_identity_alone_may_do_everything() {
        let identities = identities(&layout("x".as_ref()));
        let all = identities.iter().filter(|identity| identity.group == Some(ADMINISTRATORS));
        assert_eq!(all.map(|identity| identity.file).collect::<Vec<_>>(), ["admin"]);
    }

    #[test]
    fn the_certificate_of_a_node_has_its_name_and_its_address() {
        let identities = identities(&layout("x".as_ref()));
        let kubelet = identities.iter().find(|identity| identity.file == "kubelet").unwrap();
        assert_eq!(kubelet.name, format!("system:node:{}", node::NAME));
        assert_eq!(kubelet.hosts, ["node-1", "198.19.2.254"]);
    }

    #[test]
    fn every_identity_gets_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let layout = layout(folder.path());
        make(&layout).unwrap();
        for name in ["ca.crt", "ca.key", "etcd.crt", "admin.key", "front-proxy.crt", "service-accounts.pub"] {
            let text = std::fs::read_to_string(layout.pki(name)).unwrap();
            assert!(text.starts_with("-----BEGIN "), "{name}: {text}");
        }
        let [token, tokens] = [TOKEN, TOKENS].map(|name| std::fs::read_to_string(layout.pki(name)).unwrap());
        assert_eq!((token.len(), tokens), (64, format!("{token},admin,admin,\"system:masters\"\n")));
    }
}
