//! The input of a guest, in parts that many calls share. They are copied only once, into the guest.

use bytes::Bytes;

/// Bytes in up to five parts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Parts([Bytes; 5]);

impl Parts {
    /// A single part.
    pub(crate) fn whole(bytes: Bytes) -> Self {
        Self([bytes, Bytes::new(), Bytes::new(), Bytes::new(), Bytes::new()])
    }

    /// `{"request":…,"settings":…}` from two JSON documents. Neither is decoded, so the guest sees them byte for byte, with numbers beyond
    /// 2^53 and the order of keys.
    pub(crate) fn request(request: Bytes, settings: Bytes) -> Self {
        let text = Bytes::from_static;
        Self([text(b"{\"request\":"), request, text(b",\"settings\":"), settings, text(b"}")])
    }

    /// The request and the settings, if [`Parts::request`] made these parts.
    pub(crate) fn documents(&self) -> Option<(Bytes, Bytes)> {
        let [_, request, _, settings, end] = &self.0;
        (!end.is_empty()).then(|| (request.clone(), settings.clone()))
    }

    /// A copy of all parts, one after the other.
    pub(crate) fn concat(&self) -> Vec<u8> {
        self.0.concat()
    }

    /// The length of all parts.
    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// Writes the parts one after the other.
    ///
    /// # Panics
    /// When `buffer` is shorter than all parts together.
    pub(crate) fn write(&self, buffer: &mut [u8]) {
        let mut rest = buffer;
        for part in &self.0 {
            let (here, after) = rest.split_at_mut(part.len());
            here.copy_from_slice(part);
            rest = after;
        }
    }
}

impl IntoIterator for Parts {
    type Item = Bytes;
    type IntoIter = std::array::IntoIter<Bytes, 5>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_and_settings_reach_the_guest_byte_for_byte() {
        let (request, settings) = (&br#"{"b":1,"a":9007199254740993}"#[..], &br#"{"x":"","y":null }"#[..]);
        let parts = Parts::request(Bytes::from_static(request), Bytes::from_static(settings));
        let expected = br#"{"request":{"b":1,"a":9007199254740993},"settings":{"x":"","y":null }}"#;
        let mut buffer = vec![0; parts.len()];
        parts.write(&mut buffer);
        assert_eq!(buffer, expected);
        assert_eq!(parts.into_iter().collect::<Vec<_>>().concat(), expected);
    }
}
