//! Archives of zeros that expand to a thousand bytes and more for each byte, for programs that must not expand them.

/// The bytes before the zeros in a gzip file: its header, and that of one block with a code of its own (RFC 1951, section 3.2.7), in which
/// "258 times the byte before" takes two bits, both zero. The last bits stand for a zero byte, so that there is a byte to repeat.
const GZIP: [u8; 24] =
    [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff, 0xed, 0xc0, 0x81, 0, 0, 0, 0, 0x80, 0xa0, 0xfd, 0xa9, 0x17, 0xa9, 0];

/// `size` bytes that expand to about 1,032 times as many. The end of the block and the checksum are missing; they would come
/// after the data to expand.
pub fn gzip_bomb(size: usize) -> Vec<u8> {
    let mut bytes = GZIP.to_vec();
    bytes.resize(size.max(bytes.len()), 0);
    bytes
}

/// `blocks` times 128 KiB in four bytes each: blocks of zstd that repeat one byte (RFC 8878, section 3.1.1.2.2).
pub fn zstd_bomb(blocks: u32) -> Vec<u8> {
    const SIZE: u32 = 128 << 10;
    const REPEATED: u32 = 1;
    // The magic number, no options, and a window as large as a block.
    let mut bytes = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 7 << 3];
    for block in 1..=blocks {
        let head = SIZE << 3 | REPEATED << 1 | u32::from(block == blocks);
        bytes.extend(&head.to_le_bytes()[..3]);
        bytes.push(0);
    }
    bytes
}

/// A tar archive of one file.
pub fn tar(name: &str, content: &[u8]) -> Vec<u8> {
    const BLOCK: usize = 512;
    let mut head = [0; BLOCK];
    let mut put = |at: usize, text: &str| head[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000644\0");
    put(124, &format!("{:011o}\0", content.len()));
    // For the checksum, its own field counts as spaces.
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\x0000");
    let sum: u32 = head.iter().copied().map(u32::from).sum();
    head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut archive = [&head, content].concat();
    archive.resize(archive.len().next_multiple_of(BLOCK) + 2 * BLOCK, 0);
    archive
}

/// A gzip file with these bytes stored, and so not compressed.
pub fn stored_in_gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
    let mut blocks = bytes.chunks(usize::from(u16::MAX)).peekable();
    while let Some(block) = blocks.next() {
        let size = u16::try_from(block.len()).expect("a block is as large as that");
        packed.push(u8::from(blocks.peek().is_none()));
        packed.extend(size.to_le_bytes());
        packed.extend((!size).to_le_bytes());
        packed.extend(block);
    }
    packed
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};
    use std::thread;

    use super::*;

    /// The output of a program for this input; `None` if the program does not exist.
    fn through(program: &str, args: &[&str], bytes: &[u8]) -> Option<Vec<u8>> {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().ok()?;
        let mut input = child.stdin.take().expect("a pipe");
        Some(thread::scope(|scope| {
            scope.spawn(move || input.write_all(bytes));
            child.wait_with_output().expect("it ends").stdout
        }))
    }

    #[test]
    fn bombs_expand_a_thousandfold() {
        for (program, bomb) in [("gzip", gzip_bomb(10_000)), ("zstd", zstd_bomb(100))] {
            match through(program, &["-dc"], &bomb) {
                Some(zeros) => {
                    assert!(zeros.len() > 1000 * bomb.len() && zeros.iter().all(|byte| *byte == 0), "{program}")
                }
                None => portcullis_testkit::skip(&format!("in part, as there is no {program}")),
            }
        }
    }

    #[test]
    fn an_archive_has_its_file() {
        let archive = tar("inner.gz", b"content");
        assert_eq!(archive.len(), 4 * 512);
        match through("tar", &["-xO", "-f", "-", "inner.gz"], &archive) {
            Some(content) => assert_eq!(content, b"content"),
            None => portcullis_testkit::skip("in part, as there is no tar"),
        }
    }

    #[test]
    fn what_is_stored_is_as_large_as_before() {
        let bytes = vec![7; 100_000];
        let packed = stored_in_gzip(&bytes);
        assert!(packed.len() < bytes.len() + 100);
        if let Some(content) = through("gzip", &["-dc"], &packed) {
            assert_eq!(content, bytes);
        }
    }
}
