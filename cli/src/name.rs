//! The name that a user gives for a policy, and which policies that can be. Pure.

use portcullis_contract::{PolicyId, PolicyIdError, clean};

/// Longest list of names in an error, in bytes.
const LONGEST_LIST: usize = 500;

/// A policy as the user wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The text.
    text: String,
    form: Form,
}

/// What the text can mean.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Form {
    /// `clusterpolicy/NAME` or `cluster/NAME`.
    Cluster(String),
    /// `policy/NAME`, in some namespace.
    Namespaced(Option<String>, String),
    /// `NAME`: of either kind.
    Any(Option<String>, String),
}

/// Why a name does not mean exactly one policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The text names no policy.
    #[error(
        "POLICY: {0:?} names no policy; write NAME, policy/NAME, clusterpolicy/NAME, or an id as `portcullis get` shows it"
    )]
    Form(String),
    /// The id names another namespace than the option.
    #[error("POLICY: {id} is not of the namespace {namespace:?} of --namespace; remove one of them")]
    Namespaces {
        /// The id.
        id: String,
        /// The option.
        namespace: String,
    },
    /// It is not a valid name in Kubernetes.
    #[error("POLICY: {0}")]
    Id(#[from] PolicyIdError),
    /// No policy has this name.
    #[error("no policy {name:?} in {place}; there {known}")]
    NotFound {
        /// What was asked for.
        name: String,
        /// Where it was looked for.
        place: String,
        /// The candidates, as a text.
        known: String,
    },
    /// Several policies have this name.
    #[error("{name:?} is the name of several policies: {}; name one in full", ids.join(", "))]
    Ambiguous {
        /// What was asked for.
        name: String,
        /// The policies.
        ids: Vec<String>,
    },
}

impl Wanted {
    /// Reads what the user wrote; `namespace` is the value of `--namespace`.
    ///
    /// # Errors
    /// When it names no policy, or two namespaces.
    pub fn parse(text: &str, namespace: Option<&str>) -> Result<Self, NameError> {
        let segments: Vec<&str> = text.split('/').collect();
        let owned = |name: &str| name.to_owned();
        let option = || namespace.map(str::to_owned);
        let form = match segments.as_slice() {
            ["cluster" | "clusterpolicy" | "clusterpolicies" | "cpol", name] => Form::Cluster(owned(name)),
            ["policy" | "policies" | "pol", name] => Form::Namespaced(option(), owned(name)),
            ["namespaced", of, name] => {
                if let Some(namespace) = namespace.filter(|namespace| namespace != of) {
                    return Err(NameError::Namespaces { id: clean(text, 200), namespace: namespace.to_owned() });
                }
                Form::Namespaced(Some(owned(of)), owned(name))
            }
            [name] if !name.is_empty() => match namespace {
                Some(_) => Form::Namespaced(option(), owned(name)),
                None => Form::Any(None, owned(name)),
            },
            _ => return Err(NameError::Form(clean(text, 200))),
        };
        Ok(Self { text: clean(text, 200), form })
    }

    /// What the user wrote.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The policies that it can mean in a cluster. Policies are looked for in `namespace`, unless the user named another one.
    ///
    /// # Errors
    /// When Kubernetes has no such names.
    pub fn candidates(&self, namespace: &str) -> Result<Vec<PolicyId>, NameError> {
        let in_namespace =
            |of: &Option<String>, name: &str| PolicyId::namespaced(of.as_deref().unwrap_or(namespace), name);
        Ok(match &self.form {
            Form::Cluster(name) => vec![PolicyId::cluster(name)?],
            Form::Namespaced(of, name) => vec![in_namespace(of, name)?],
            Form::Any(of, name) => vec![PolicyId::cluster(name)?, in_namespace(of, name)?],
        })
    }

    /// The index of the policy in `ids`, which are all policies of `place`.
    ///
    /// # Errors
    /// When none or several are meant.
    pub fn find(&self, ids: &[&PolicyId], place: &str) -> Result<usize, NameError> {
        if let Some(exact) = ids.iter().position(|id| id.as_str() == self.text) {
            return Ok(exact);
        }
        let is_meant = |id: &PolicyId| match &self.form {
            Form::Cluster(name) => id.namespace().is_none() && id.name() == name,
            Form::Namespaced(of, name) => {
                id.name() == name
                    && id.namespace().is_some_and(|namespace| of.as_deref().is_none_or(|of| of == namespace))
            }
            Form::Any(_, name) => id.name() == name,
        };
        let meant: Vec<usize> = (0..ids.len()).filter(|place| is_meant(ids[*place])).collect();
        match meant.as_slice() {
            [one] => Ok(*one),
            [] => Err(self.not_found(place, &known(ids))),
            several => Err(self.ambiguous(several.iter().map(|place| ids[*place]))),
        }
    }

    /// No policy has this name; `known` says which there are.
    pub fn not_found(&self, place: &str, known: &str) -> NameError {
        NameError::NotFound { name: self.text.clone(), place: place.to_owned(), known: known.to_owned() }
    }

    /// Several policies have this name.
    pub fn ambiguous<'a>(&self, ids: impl IntoIterator<Item = &'a PolicyId>) -> NameError {
        NameError::Ambiguous { name: self.text.clone(), ids: ids.into_iter().map(ToString::to_string).collect() }
    }
}

/// A text that names the policies that exist.
pub fn known(ids: &[&PolicyId]) -> String {
    let ids: Vec<&str> = ids.iter().map(|id| id.as_str()).collect();
    let known = match ids.as_slice() {
        [] => "is none at all".to_owned(),
        [one] => format!("is {one} only"),
        several => format!("are {}", several.join(", ")),
    };
    portcullis_contract::truncate(&known, LONGEST_LIST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(text: &str, namespace: Option<&str>) -> Result<String, String> {
        let wanted = Wanted::parse(text, namespace).map_err(|error| error.to_string())?;
        let ids = wanted.candidates("shop").map_err(|error| error.to_string())?;
        Ok(ids.iter().map(PolicyId::as_str).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn every_way_to_write_a_name() {
        let of = |text, namespace| candidates(text, namespace).expect("a name");
        assert_eq!(of("labels", None), "cluster/labels namespaced/shop/labels");
        assert_eq!(of("labels", Some("team-a")), "namespaced/team-a/labels");
        assert_eq!(of("policy/labels", None), "namespaced/shop/labels");
        assert_eq!(of("pol/labels", Some("team-a")), "namespaced/team-a/labels");
        assert_eq!(of("clusterpolicy/labels", Some("team-a")), "cluster/labels");
        assert_eq!(of("cluster/labels", None), "cluster/labels");
        assert_eq!(of("namespaced/team-a/labels", None), "namespaced/team-a/labels");
    }

    #[test]
    fn what_is_no_name_is_told_with_what_would_be_one() {
        assert!(candidates("pod/labels", None).expect_err("refused").contains("write NAME, policy/NAME"));
        assert!(candidates("", None).is_err());
        assert!(candidates("No_Name", None).expect_err("refused").contains("is not a policy id"));
        let error = candidates("namespaced/team-a/labels", Some("team-b")).expect_err("refused");
        assert_eq!(
            error,
            "POLICY: namespaced/team-a/labels is not of the namespace \"team-b\" of --namespace; remove one of them"
        );
    }

    #[test]
    fn a_name_among_those_of_a_folder() {
        let ids = ["bare", "cluster/a", "namespaced/x/a", "namespaced/x/b", "namespaced/y/b"]
            .map(|id| id.parse::<PolicyId>().expect("an id"));
        let ids: Vec<&PolicyId> = ids.iter().collect();
        let find = |text: &str, namespace| Wanted::parse(text, namespace).and_then(|wanted| wanted.find(&ids, "here"));
        assert_eq!(find("bare", None), Ok(0));
        assert_eq!(find("cluster/a", None), Ok(1));
        assert_eq!(find("policy/a", None), Ok(2));
        assert_eq!(find("b", Some("y")), Ok(4));
        assert!(find("a", None).expect_err("two").to_string().contains("cluster/a, namespaced/x/a; name one in full"));
        assert!(find("policy/b", None).is_err());
        assert!(
            find("c", None).expect_err("none").to_string().starts_with("no policy \"c\" in here; there are bare, ")
        );
    }
}
