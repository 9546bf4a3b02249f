//! Passwords for web servers, where other programs find them: `~/.netrc`, or the file that `NETRC` names.

use std::path::PathBuf;

use crate::aws_files::small_file;

/// The user and password for a host.
pub(crate) fn login(host: &str) -> Option<(String, String)> {
    let named = std::env::var_os("NETRC").map(PathBuf::from);
    let path = named.or_else(|| Some(std::env::home_dir()?.join(".netrc")))?;
    find(&small_file(&path)?, host)
}

/// The first entry of a host, or else the default one.
fn find(text: &str, host: &str) -> Option<(String, String)> {
    // Macros end with an empty line.
    let mut words: Vec<&str> = Vec::new();
    let mut in_macro = false;
    for line in text.lines() {
        in_macro = in_macro && !line.trim().is_empty();
        if !in_macro {
            let line: Vec<&str> = line
                .split_ascii_whitespace()
                .take_while(|word| !word.starts_with('#'))
                .collect();
            in_macro = line.first() == Some(&"macdef");
            words.extend(line.into_iter().filter(|_| !in_macro));
        }
    }
    let mut words = words.into_iter();
    let (mut here, mut user, mut password) = (false, None, None);
    while let Some(word) = words.next() {
        match word {
            "machine" | "default" => {
                if here && password.is_some() {
                    break;
                }
                here = word == "default"
                    || words
                        .next()
                        .is_some_and(|name| name.eq_ignore_ascii_case(host));
                (user, password) = (None, None);
            }
            "login" => user = words.next(),
            "password" => password = words.next(),
            "account" => {
                words.next();
            }
            _ => {}
        }
    }
    let password = password.filter(|_| here)?;
    Some((user.unwrap_or_default().to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_by_their_host() {
        let text = "machine a login one password p1\nmacdef init\nmachine b\n\nmachine b\n  login two\n  password p2 # end\nmachine c login three\n";
        let some = |user: &str, password: &str| Some((user.to_owned(), password.to_owned()));
        assert_eq!(find(text, "a"), some("one", "p1"));
        assert_eq!(find(text, "B"), some("two", "p2"));
        assert_eq!(find(text, "c"), None);
        assert_eq!(find(text, "d"), None);
        let text = format!("{text}default login any password p4");
        assert_eq!(find(&text, "d"), some("any", "p4"));
        assert_eq!(find("", "a"), None);
    }
}
