//! The names of Docker Hub.

use std::borrow::Cow;

/// The host of names without a host.
pub(crate) const HUB: &str = "docker.io";
/// Its earlier name.
pub(crate) const HUB_EARLIER: &str = "index.docker.io";
/// The host that answers for it.
pub(crate) const HUB_API: &str = "registry-1.docker.io";

/// An address of a list, or one that is compared with it, in which Docker Hub has the name that it has in
/// [`Image::address`](crate::oci::Image::address).
pub(crate) fn with_one_name_of_hub(address: &str) -> Cow<'_, str> {
    let rest = address.strip_prefix("registry://").and_then(|name| name.strip_prefix(HUB_EARLIER)?.strip_prefix('/'));
    rest.map_or(Cow::Borrowed(address), |rest| Cow::Owned(format!("registry://{HUB}/{rest}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_may_name_the_hub_either_way() {
        for (address, same) in [
            ("registry://index.docker.io/a/*", "registry://docker.io/a/*"),
            ("registry://docker.io/a/*", "registry://docker.io/a/*"),
            ("registry://index.docker.io.evil.org/a", "registry://index.docker.io.evil.org/a"),
            ("https://index.docker.io/a", "https://index.docker.io/a"),
        ] {
            assert_eq!(with_one_name_of_hub(address), same);
        }
    }
}
