//! The answer to GETXATTR and LISTXATTR: a value, or its size.

use rustix::io::Errno;

use crate::ops::answer::{Answer, Outcome};
use crate::proto::Put;

/// Replies with a value, or with its size if the request is for the size.
pub(crate) fn put_value(room: u32, value: &[u8], announced: usize, out: &mut Vec<u8>) -> Outcome {
    if room == 0 {
        out.put32(u32::try_from(announced).map_err(|_| Errno::TOOBIG)?);
        out.put32(0);
    } else if value.len() <= room as usize {
        out.extend_from_slice(value);
    } else {
        return Err(Errno::RANGE);
    }
    Ok(Answer::Reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attribute_sizes() {
        let ask = |room| {
            let mut out = Vec::new();
            put_value(room, b"12345", 4101, &mut out).map(|_| out)
        };
        assert_eq!(ask(0), Ok([4101u32.to_ne_bytes(), [0; 4]].concat()));
        assert_eq!(ask(4), Err(Errno::RANGE));
        assert_eq!(ask(5), Ok(b"12345".to_vec()));
    }
}
