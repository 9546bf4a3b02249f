//! Which parts of the information are shown.

use std::str::FromStr;

/// A part of the information.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Feature {
    Version,
    MetadataSummary,
    History,
    SectionDetails,
    MetadataDetails,
}

const SUPPORTED: [(&str, Feature); 5] = [
    ("version", Feature::Version),
    ("metadata_summary", Feature::MetadataSummary),
    ("history", Feature::History),
    ("section_details", Feature::SectionDetails),
    ("metadata_details", Feature::MetadataDetails),
];

/// Names that the original knows and that come later here.
const LATER: [&str; 7] = [
    "frozen_analysis",
    "frozen_details",
    "frozen_layout",
    "directory_tree",
    "chunk_details",
    "metadata_full_dump",
    "schema_raw_dump",
];

/// The highest level there is anything for.
const MAX_LEVEL: i64 = 3;

/// What to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Detail(Vec<Feature>);

impl Detail {
    pub(crate) fn has(&self, feature: Feature) -> bool {
        self.0.contains(&feature)
    }
}

impl FromStr for Detail {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(level) = text.parse::<i64>() {
            if level > MAX_LEVEL {
                return Err(format!(
                    "detail levels above {MAX_LEVEL} are not supported yet"
                ));
            }
            let number = match level {
                ..=0 => 0,
                1 => 2,
                2 => 3,
                _ => SUPPORTED.len(),
            };
            return Ok(Self(
                SUPPORTED
                    .iter()
                    .take(number)
                    .map(|(_, feature)| *feature)
                    .collect(),
            ));
        }
        let mut features = Vec::new();
        for name in text.split(',') {
            if let Some((_, feature)) = SUPPORTED.iter().find(|(known, _)| *known == name) {
                features.push(*feature);
            } else if LATER.contains(&name) {
                return Err(format!("feature '{name}' is not supported yet"));
            } else {
                return Err(format!("invalid feature: \"{name}\""));
            }
        }
        Ok(Self(features))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_cumulative() {
        let parse = |s: &str| s.parse::<Detail>();
        assert_eq!(parse("-1").unwrap(), parse("0").unwrap());
        assert!(!parse("0").unwrap().has(Feature::Version));
        assert_eq!(parse("1"), parse("version,metadata_summary"));
        assert!(parse("2").unwrap().has(Feature::History));
        assert!(!parse("2").unwrap().has(Feature::SectionDetails));
        assert!(parse("3").unwrap().has(Feature::MetadataDetails));
        assert!(parse("4").unwrap_err().contains("not supported yet"));
        assert!(
            parse("directory_tree")
                .unwrap_err()
                .contains("not supported yet")
        );
        assert_eq!(parse("foo").unwrap_err(), "invalid feature: \"foo\"");
    }
}
