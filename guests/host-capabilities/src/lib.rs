//! Asks its host for what its settings say, with the functions of the SDK, and denies. The message holds all answers, the audit annotations
//! `call-0`, `call-1` and so on hold one each. With `swallow` it does not mention them, like a policy that handles errors badly.

use std::collections::HashMap;

use kubewarden_policy_sdk::host_capabilities::crypto::{Certificate, CertificateEncoding, verify_cert};
use kubewarden_policy_sdk::host_capabilities::net::lookup_host;
use kubewarden_policy_sdk::host_capabilities::oci::{get_manifest, get_manifest_and_config, get_manifest_digest};
use kubewarden_policy_sdk::host_capabilities::verification::verify_pub_keys_image;
use kubewarden_policy_sdk::reject_request;
use kubewarden_policy_sdk::settings::Validatable;
use kubewarden_policy_sdk::wapc_guest::{CallResult, host_call};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Called by the host after it has made an instance.
#[unsafe(no_mangle)]
pub extern "C" fn wapc_init() {
    guest_kit::register::<Settings>(validate);
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    #[serde(default)]
    calls: Vec<Call>,
    #[serde(default)]
    swallow: bool,
}

/// One call of the host.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum Call {
    LookupHost(String),
    ManifestDigest(String),
    Manifest(String),
    ManifestAndConfig(String),
    #[serde(rename_all = "camelCase")]
    VerifyKeys {
        image: String,
        keys: Vec<String>,
    },
    /// A certificate and the chain to its root, in PEM.
    #[serde(rename_all = "camelCase")]
    VerifyCertificate {
        certificate: String,
        chain: Vec<String>,
    },
    /// Any call, with its names and its payload.
    Raw {
        namespace: String,
        operation: String,
        payload: Value,
    },
}

impl Validatable for Settings {
    fn validate(&self) -> Result<(), String> {
        Ok(())
    }
}

#[derive(Deserialize)]
struct Payload {
    settings: Settings,
}

fn validate(payload: &[u8]) -> CallResult {
    let Payload { settings } = serde_json::from_slice(payload)?;
    let answers = settings.calls.into_iter().map(|call| call.ask().unwrap_or_else(|error| format!("error: {error}")));
    let answers: Vec<String> = answers.collect();
    if settings.swallow {
        return reject_request(Some("something is wrong".to_owned()), None, None, None);
    }
    let message = answers.join("; ");
    let annotations: HashMap<_, _> =
        answers.into_iter().enumerate().map(|(number, answer)| (format!("call-{number}"), answer)).collect();
    reject_request(Some(message), None, Some(annotations), None)
}

impl Call {
    fn ask(self) -> Result<String, String> {
        match self {
            Self::LookupHost(host) => json(lookup_host(&host)),
            Self::ManifestDigest(image) => json(get_manifest_digest(&image)),
            Self::Manifest(image) => json(get_manifest(&image)),
            Self::ManifestAndConfig(image) => json(get_manifest_and_config(&image)),
            Self::VerifyKeys { image, keys } => json(verify_pub_keys_image(&image, keys, None)),
            Self::VerifyCertificate { certificate, chain } => {
                let pem = |text: String| Certificate { encoding: CertificateEncoding::Pem, data: text.into_bytes() };
                json(verify_cert(pem(certificate), Some(chain.into_iter().map(pem).collect()), None))
            }
            Self::Raw { namespace, operation, payload } => {
                let payload = serde_json::to_vec(&payload).map_err(|error| error.to_string())?;
                let answer = host_call("kubewarden", &namespace, &operation, &payload);
                answer.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).map_err(|error| error.to_string())
            }
        }
    }
}

fn json<T: Serialize, E: ToString>(answer: Result<T, E>) -> Result<String, String> {
    let answer = answer.map_err(|error| error.to_string())?;
    serde_json::to_string(&answer).map_err(|error| error.to_string())
}
