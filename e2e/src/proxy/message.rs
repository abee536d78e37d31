//! HTTP/1.1 messages: their heads, and where their bodies end.

/// The head of a request or an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Head {
    /// The request line or the status line.
    pub(super) first: String,
    headers: Vec<(String, String)>,
}

/// Where a body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Length {
    /// After this many bytes.
    Known(u64),
    /// After an empty chunk; it comes in chunks.
    Chunked,
    /// At the end of the connection.
    Open,
}

impl Head {
    /// Decodes a head without the empty line at its end.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut lines = text.split("\r\n");
        let first = lines.next()?.to_owned();
        let header = |line: &str| line.split_once(':').map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
        let headers = lines.filter(|line| !line.is_empty()).map(header).collect::<Option<_>>()?;
        Some(Self { first, headers })
    }

    /// A header's value.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// A word of the first line.
    pub(super) fn word(&self, index: usize) -> &str {
        self.first.split(' ').nth(index).unwrap_or_default()
    }

    /// The status of an answer.
    pub(super) fn status(&self) -> u16 {
        self.word(1).parse().unwrap_or(0)
    }

    /// Where the body of a request ends: there is no body unless the head announces one.
    pub(super) fn request_length(&self) -> Length {
        self.length().unwrap_or(Length::Known(0))
    }

    /// Where the body of an answer ends.
    pub(super) fn answer_length(&self) -> Length {
        match self.status() {
            100..200 | 204 | 304 => Length::Known(0),
            _ => self.length().unwrap_or(Length::Open),
        }
    }

    fn length(&self) -> Option<Length> {
        if self.header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
            return Some(Length::Chunked);
        }
        self.header("content-length")?.parse().ok().map(Length::Known)
    }

    /// The bytes of the head with other values for some headers; an empty value removes a header.
    pub(super) fn render(&self, changes: &[(&str, &str)]) -> Vec<u8> {
        let is_changed = |name: &str| changes.iter().any(|(changed, _)| changed.eq_ignore_ascii_case(name));
        let kept = self.headers.iter().filter(|(name, _)| !is_changed(name));
        let kept = kept.map(|(name, value)| (name.as_str(), value.as_str()));
        let changed = changes.iter().copied().filter(|(_, value)| !value.is_empty());
        let lines: String = kept.chain(changed).map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        format!("{}\r\n{lines}\r\n", self.first).into_bytes()
    }
}

/// Takes the first head from a buffer; `None` while it is not complete.
pub(super) fn take_head(buffer: &mut Vec<u8>) -> Option<Vec<u8>> {
    let end = buffer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = buffer[..end].to_vec();
    buffer.drain(..end + 4);
    Some(head)
}

/// Takes the first chunk with its framing from a buffer; `None` while it is not complete.
pub(super) fn take_chunk(buffer: &mut Vec<u8>) -> Option<Vec<u8>> {
    let line = buffer.windows(2).position(|window| window == b"\r\n")?;
    let size = std::str::from_utf8(&buffer[..line]).ok()?;
    let size = usize::from_str_radix(size.split(';').next()?.trim(), 16).ok()?;
    let whole = line + 2 + size + 2;
    (buffer.len() >= whole).then(|| buffer.drain(..whole).collect())
}

/// A chunk with these data.
pub(super) fn chunk(data: &str) -> Vec<u8> {
    format!("{:x}\r\n{data}\r\n", data.len()).into_bytes()
}

/// Whether it is the chunk that ends a body.
pub(super) fn is_last(chunk: &[u8]) -> bool {
    chunk.starts_with(b"0\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_taken_when_they_are_whole() {
        let mut buffer = b"3\r\nabc\r".to_vec();
        assert_eq!(take_chunk(&mut buffer), None);
        buffer.extend(b"\n0\r\n\r\n");
        assert_eq!(take_chunk(&mut buffer).unwrap(), chunk("abc"));
        let last = take_chunk(&mut buffer).unwrap();
        assert!(is_last(&last) && buffer.is_empty());
    }

    #[test]
    fn heads_tell_where_bodies_end() {
        let head = |text: &str| Head::parse(text.as_bytes()).unwrap();
        assert_eq!(head("GET / HTTP/1.1\r\nHost: a").request_length(), Length::Known(0));
        assert_eq!(head("HTTP/1.1 200 OK\r\ncontent-length: 7").answer_length(), Length::Known(7));
        assert_eq!(head("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked").answer_length(), Length::Chunked);
        assert_eq!(head("HTTP/1.1 204 No Content").answer_length(), Length::Known(0));
        assert_eq!(head("HTTP/1.1 200 OK").answer_length(), Length::Open);
    }

    #[test]
    fn headers_are_changed_and_left_out() {
        let head = Head::parse(b"GET / HTTP/1.1\r\nConnection: keep-alive\r\nAccept-Encoding: gzip\r\nA: b").unwrap();
        let text = head.render(&[("connection", "close"), ("accept-encoding", "")]);
        assert_eq!(text, b"GET / HTTP/1.1\r\nA: b\r\nconnection: close\r\n\r\n");
    }
}
