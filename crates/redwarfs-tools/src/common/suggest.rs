//! Advice for unknown words: lists the known ones and the most similar.

/// `one of a, b, c`.
#[must_use]
pub fn one_of<S: AsRef<str>>(known: impl IntoIterator<Item = S>) -> String {
    let mut out = String::from("one of ");
    for (at, name) in known.into_iter().enumerate() {
        if at > 0 {
            out.push_str(", ");
        }
        out.push_str(name.as_ref());
    }
    out
}

/// A complaint about a word that is none of those `known`: `what (one of a, b, c)`.
#[must_use]
pub fn unknown<S: AsRef<str>>(
    what: impl std::fmt::Display,
    known: impl IntoIterator<Item = S>,
) -> String {
    format!("{what} ({})", one_of(known))
}

/// The one of the words `known` that is so much like `word` that it was probably meant.
#[must_use]
pub fn similar<S: AsRef<str>>(word: &str, known: impl IntoIterator<Item = S>) -> Option<S> {
    // Below, most words have nothing to do with each other.
    const ALIKE: f64 = 0.8;
    known
        .into_iter()
        .map(|name| (strsim::jaro(word, name.as_ref()), name))
        .filter(|(alike, _)| *alike > ALIKE)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_in_spite_of_mistakes() {
        let known = ["cachesize", "workers", "offset", "tidy_strategy", "uid"];
        for (word, want) in [
            ("cache_size", Some("cachesize")),
            ("worker", Some("workers")),
            ("ofset", Some("offset")),
            ("tidystrategy", Some("tidy_strategy")),
            ("uuid", Some("uid")),
            ("xyzzy", None),
            ("", None),
        ] {
            assert_eq!(similar(word, known), want, "{word}");
        }
    }

    #[test]
    fn lists() {
        assert_eq!(unknown("no x", ["a", "b"]), "no x (one of a, b)");
    }
}
