//! The files in which the clients of S3 keep credentials and settings: `~/.aws/credentials` and `~/.aws/config`.

use std::collections::HashMap;
use std::path::PathBuf;

/// Longest file that is read (1 MiB).
const LONGEST: u64 = 1 << 20;

/// The settings of one profile. The file with the credentials counts before the other one.
#[derive(Default)]
pub(crate) struct Profile(HashMap<String, String>);

impl Profile {
    /// That which `AWS_PROFILE` names, or `default`.
    pub(crate) fn load() -> Self {
        let name = variable("AWS_PROFILE").unwrap_or_else(|| String::from("default"));
        let file = |variable_name: &str, usual: &str| {
            let path = variable(variable_name).map(PathBuf::from);
            path.or_else(|| Some(std::env::home_dir()?.join(".aws").join(usual)))
        };
        let mut profile = Self::default();
        for (path, prefix) in [
            (file("AWS_CONFIG_FILE", "config"), "profile "),
            (file("AWS_SHARED_CREDENTIALS_FILE", "credentials"), ""),
        ] {
            if let Some(text) = path.and_then(|path| small_file(&path)) {
                profile.add(&text, &name, prefix);
            }
        }
        profile
    }

    /// A setting that has a value.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// Adds the settings of a profile. Sections of `config` begin with a word, except that of `default`.
    fn add(&mut self, text: &str, profile: &str, prefix: &str) {
        let mut wanted = false;
        for line in text.lines() {
            // Lines of nested settings are indented.
            if line.starts_with([' ', '\t', '#', ';']) {
                continue;
            }
            let section = line
                .trim_end()
                .strip_prefix('[')
                .and_then(|line| line.strip_suffix(']'));
            if let Some(section) = section {
                let section = section.trim();
                let named = section.strip_prefix(prefix).map(str::trim);
                wanted = named == Some(profile) || (section == "default" && profile == "default");
            } else if let Some((key, value)) = line.split_once('=').filter(|_| wanted) {
                let (key, value) = (key.trim().to_ascii_lowercase(), value.trim());
                if !value.is_empty() {
                    self.0.insert(key, value.to_owned());
                }
            }
        }
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The text of a file, if there is one that is not too long.
pub(crate) fn small_file(path: &std::path::Path) -> Option<String> {
    let metadata = std::fs::metadata(path).ok()?;
    if !metadata.is_file() || metadata.len() > LONGEST {
        return None;
    }
    std::fs::read_to_string(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_sections() {
        let config = "# a\n[default]\nregion = eu-1\n[profile other]\nregion=us-2\ns3 =\n  key = nested\nendpoint_url = http://h\n";
        let credentials = "[default]\naws_access_key_id = one\n[other]\nAWS_ACCESS_KEY_ID=two\n";
        for (name, region, id) in [("default", "eu-1", "one"), ("other", "us-2", "two")] {
            let mut profile = Profile::default();
            profile.add(config, name, "profile ");
            profile.add(credentials, name, "");
            assert_eq!(profile.get("region"), Some(region));
            assert_eq!(profile.get("aws_access_key_id"), Some(id));
            assert_eq!(profile.get("key"), None);
            assert_eq!(profile.get("endpoint_url").is_some(), name == "other");
        }
        let mut profile = Profile::default();
        profile.add(config, "missing", "profile ");
        assert_eq!(profile.get("region"), None);
    }
}
