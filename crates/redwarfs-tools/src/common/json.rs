//! Writing JSON piece by piece. Memory does not grow with the document, and every document is valid
//! whatever bytes an image holds.
//!
//! Names in an image are bytes. In JSON, which is text, a byte string that is not UTF-8 appears
//! twice: with replacement characters under its key, and unchanged but in base64 under the key plus
//! [`BASE64_SUFFIX`].

use std::io::{self, Write};

use serde_json::Value;

/// Appended to the key of a byte string for the key of its exact form.
pub const BASE64_SUFFIX: &str = "_base64";

/// Deepest nesting that is written. Readers of JSON commonly refuse far less.
const DEEPEST: usize = 1 << 16;

/// A JSON document in the making.
///
/// Values follow each other in arrays; in objects [`JsonWriter::key`] comes before each. Commas and
/// line breaks come by themselves. Memory: a byte per open array or object.
///
/// ```
/// use redwarfs_tools::common::json::JsonWriter;
/// let mut json = JsonWriter::compact(Vec::new());
/// json.begin_object()?;
/// json.key("size")?;
/// json.number(5)?;
/// json.name("name", b"a\xffb")?;
/// json.end_object()?;
/// let text = String::from_utf8_lossy(json.get_ref()).into_owned();
/// assert_eq!(text, "{\"size\":5,\"name\":\"a\u{fffd}b\",\"name_base64\":\"Yf9i\"}");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct JsonWriter<W: Write> {
    out: W,
    pretty: bool,
    open: Vec<Container>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Container {
    /// Nothing was written into it yet.
    Empty,
    /// Something was.
    Filled,
    /// A key was written that waits for its value.
    Key,
}

impl<W: Write> JsonWriter<W> {
    /// A document on one line.
    pub fn compact(out: W) -> Self {
        Self {
            out,
            pretty: false,
            open: Vec::new(),
        }
    }

    /// A document that is indented by two spaces.
    pub fn pretty(out: W) -> Self {
        Self {
            pretty: true,
            ..Self::compact(out)
        }
    }

    /// The output.
    pub fn get_ref(&self) -> &W {
        &self.out
    }

    /// The output, at the end.
    pub fn into_inner(self) -> W {
        self.out
    }

    /// Starts an object.
    ///
    /// # Errors
    /// If writing fails, or `InvalidData` if the nesting is absurdly deep (65536).
    pub fn begin_object(&mut self) -> io::Result<()> {
        self.begin(b"{")
    }

    /// Ends an object.
    ///
    /// # Errors
    /// If writing fails.
    pub fn end_object(&mut self) -> io::Result<()> {
        self.end(b"}")
    }

    /// Starts an array.
    ///
    /// # Errors
    /// As [`JsonWriter::begin_object`].
    pub fn begin_array(&mut self) -> io::Result<()> {
        self.begin(b"[")
    }

    /// Ends an array.
    ///
    /// # Errors
    /// If writing fails.
    pub fn end_array(&mut self) -> io::Result<()> {
        self.end(b"]")
    }

    /// Writes the key of the next value of an object.
    ///
    /// # Errors
    /// If writing fails.
    pub fn key(&mut self, key: &str) -> io::Result<()> {
        self.separate()?;
        serde_json::to_writer(&mut self.out, key)?;
        self.out.write_all(if self.pretty { b": " } else { b":" })?;
        if let Some(state) = self.open.last_mut() {
            *state = Container::Key;
        }
        Ok(())
    }

    /// A whole number.
    ///
    /// # Errors
    /// If writing fails.
    pub fn number(&mut self, number: impl Into<i128>) -> io::Result<()> {
        self.separate()?;
        write!(self.out, "{}", number.into())
    }

    /// A number with a fraction; null if it is not finite.
    ///
    /// # Errors
    /// If writing fails.
    pub fn float(&mut self, number: f64) -> io::Result<()> {
        self.separate()?;
        serde_json::to_writer(&mut self.out, &number)?;
        Ok(())
    }

    /// True or false.
    ///
    /// # Errors
    /// If writing fails.
    pub fn boolean(&mut self, value: bool) -> io::Result<()> {
        self.separate()?;
        self.out.write_all(if value { b"true" } else { b"false" })
    }

    /// Null.
    ///
    /// # Errors
    /// If writing fails.
    pub fn null(&mut self) -> io::Result<()> {
        self.separate()?;
        self.out.write_all(b"null")
    }

    /// A text.
    ///
    /// # Errors
    /// If writing fails.
    pub fn string(&mut self, text: &str) -> io::Result<()> {
        self.separate()?;
        serde_json::to_writer(&mut self.out, text)?;
        Ok(())
    }

    /// A byte string where only the readable form fits, for example in an array; the bytes that are
    /// not UTF-8 are replaced.
    ///
    /// # Errors
    /// If writing fails.
    pub fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.string(&String::from_utf8_lossy(bytes))
    }

    /// A key with a byte string, and a second key ([`BASE64_SUFFIX`]) with the exact bytes if they
    /// are not UTF-8.
    ///
    /// # Errors
    /// If writing fails.
    pub fn name(&mut self, key: &str, bytes: &[u8]) -> io::Result<()> {
        self.key(key)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => self.string(text),
            Err(_) => {
                self.bytes(bytes)?;
                self.key(&format!("{key}{BASE64_SUFFIX}"))?;
                self.string(&base64(bytes))
            }
        }
    }

    /// A value that was made elsewhere.
    ///
    /// # Errors
    /// If writing fails.
    pub fn value(&mut self, value: &Value) -> io::Result<()> {
        match value {
            Value::Array(items) => {
                self.begin_array()?;
                for item in items {
                    self.value(item)?;
                }
                self.end_array()
            }
            Value::Object(members) => {
                self.begin_object()?;
                for (key, value) in members {
                    self.key(key)?;
                    self.value(value)?;
                }
                self.end_object()
            }
            simple => {
                self.separate()?;
                serde_json::to_writer(&mut self.out, simple)?;
                Ok(())
            }
        }
    }

    /// A key and a whole number.
    ///
    /// # Errors
    /// If writing fails.
    pub fn number_at(&mut self, key: &str, number: impl Into<i128>) -> io::Result<()> {
        self.key(key)?;
        self.number(number)
    }

    /// A key and a text.
    ///
    /// # Errors
    /// If writing fails.
    pub fn string_at(&mut self, key: &str, text: &str) -> io::Result<()> {
        self.key(key)?;
        self.string(text)
    }

    /// A key and true or false.
    ///
    /// # Errors
    /// If writing fails.
    pub fn boolean_at(&mut self, key: &str, value: bool) -> io::Result<()> {
        self.key(key)?;
        self.boolean(value)
    }

    /// Ends the document with a line break and flushes the output.
    ///
    /// # Errors
    /// If writing fails.
    pub fn finish(&mut self) -> io::Result<()> {
        self.out.write_all(b"\n")?;
        self.out.flush()
    }

    fn begin(&mut self, bracket: &[u8]) -> io::Result<()> {
        self.separate()?;
        if self.open.len() >= DEEPEST {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the document is nested too deeply",
            ));
        }
        self.open.push(Container::Empty);
        self.out.write_all(bracket)
    }

    fn end(&mut self, bracket: &[u8]) -> io::Result<()> {
        if self.open.pop() == Some(Container::Filled) {
            self.line_break()?;
        }
        self.out.write_all(bracket)
    }

    /// What stands between the previous value and the next.
    fn separate(&mut self) -> io::Result<()> {
        let Some(state) = self.open.last_mut() else {
            return Ok(());
        };
        match std::mem::replace(state, Container::Filled) {
            Container::Key => Ok(()),
            Container::Empty => self.line_break(),
            Container::Filled => {
                self.out.write_all(b",")?;
                self.line_break()
            }
        }
    }

    fn line_break(&mut self) -> io::Result<()> {
        if !self.pretty {
            return Ok(());
        }
        self.out.write_all(b"\n")?;
        for _ in 0..self.open.len() {
            self.out.write_all(b"  ")?;
        }
        Ok(())
    }
}

/// The bytes in base64 (RFC 4648, with padding).
#[must_use]
pub fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let value = (0..3).fold(0_usize, |value, i| {
            value << 8 | usize::from(group.get(i).copied().unwrap_or(0))
        });
        for i in 0..4 {
            let digit = DIGITS[value >> (18 - 6 * i) & 63];
            out.push(if i <= group.len() {
                char::from(digit)
            } else {
                '='
            });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(pretty: bool, make: impl Fn(&mut JsonWriter<Vec<u8>>) -> io::Result<()>) -> String {
        let mut json = if pretty {
            JsonWriter::pretty(Vec::new())
        } else {
            JsonWriter::compact(Vec::new())
        };
        make(&mut json).unwrap();
        String::from_utf8(json.into_inner()).unwrap()
    }

    #[test]
    fn documents() {
        let make = |json: &mut JsonWriter<Vec<u8>>| {
            json.begin_object()?;
            json.number_at("a", u64::MAX)?;
            json.key("b")?;
            json.begin_array()?;
            json.float(0.5)?;
            json.float(f64::NAN)?;
            json.null()?;
            json.boolean(true)?;
            json.string("\"\\\n\u{1}\u{7f}é")?;
            json.begin_array()?;
            json.end_array()?;
            json.begin_object()?;
            json.end_object()?;
            json.end_array()?;
            json.key("c")?;
            json.value(&serde_json::json!({"x": [1, {"y": null}]}))?;
            json.end_object()
        };
        let compact = written(false, make);
        assert_eq!(
            compact,
            "{\"a\":18446744073709551615,\"b\":[0.5,null,null,true,\"\\\"\\\\\\n\\u0001\u{7f}é\",[],{}],\
             \"c\":{\"x\":[1,{\"y\":null}]}}"
        );
        let pretty = written(true, make);
        assert!(pretty.starts_with("{\n  \"a\": 18446744073709551615,\n  \"b\": [\n    0.5,\n"));
        assert!(pretty.contains("    [],\n    {}\n  ],\n"));
        let [one, two] =
            [compact, pretty].map(|text| serde_json::from_str::<Value>(&text).unwrap());
        assert_eq!(one, two);
    }

    #[test]
    fn names_are_readable_and_exact() {
        let name = |bytes: &[u8]| {
            written(false, |json| {
                json.begin_object()?;
                json.name("n", bytes)?;
                json.end_object()
            })
        };
        assert_eq!(name("a\té".as_bytes()), "{\"n\":\"a\\té\"}");
        assert_eq!(
            name(b"\xff\"\xfe"),
            "{\"n\":\"\u{fffd}\\\"\u{fffd}\",\"n_base64\":\"/yL+\"}"
        );
    }

    #[test]
    fn base64_of_the_standard() {
        // RFC 4648 section 10.
        for (text, want) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(text.as_bytes()), want);
        }
        assert_eq!(base64(&[0xff, 0xfe, 0xfd]), "//79");
    }

    #[test]
    fn nesting_has_a_limit() {
        let mut json = JsonWriter::compact(io::sink());
        for _ in 0..DEEPEST {
            json.begin_array().unwrap();
        }
        assert_eq!(
            json.begin_array().unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
    }
}
