//! Which parts of the information are shown.

use std::str::FromStr;

use crate::common::suggest::unknown;

/// A part of the information.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Feature {
    Version,
    MetadataSummary,
    History,
    FrozenAnalysis,
    SectionDetails,
    MetadataDetails,
    FrozenDetails,
    FrozenLayout,
    DirectoryTree,
    ChunkDetails,
    MetadataFullDump,
    SchemaRawDump,
}

/// Names, and the lowest level that includes each.
const FEATURES: [(&str, Feature, i64); 12] = [
    ("version", Feature::Version, 1),
    ("metadata_summary", Feature::MetadataSummary, 1),
    ("history", Feature::History, 2),
    ("frozen_analysis", Feature::FrozenAnalysis, 2),
    ("section_details", Feature::SectionDetails, 3),
    ("metadata_details", Feature::MetadataDetails, 3),
    ("frozen_details", Feature::FrozenDetails, 3),
    ("frozen_layout", Feature::FrozenLayout, 4),
    ("directory_tree", Feature::DirectoryTree, 4),
    ("chunk_details", Feature::ChunkDetails, 5),
    ("metadata_full_dump", Feature::MetadataFullDump, 6),
    ("schema_raw_dump", Feature::SchemaRawDump, 7),
];

/// What to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Detail(Vec<Feature>);

impl Detail {
    /// The names of all parts.
    pub(super) fn names() -> impl Iterator<Item = &'static str> {
        FEATURES.iter().map(|(name, ..)| *name)
    }

    pub(crate) fn has(&self, feature: Feature) -> bool {
        self.0.contains(&feature)
    }
}

impl FromStr for Detail {
    type Err = String;

    /// A level, below 0 as 0 and above 7 as 7, or a comma list of names.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(level) = text.parse::<i64>() {
            let included = FEATURES.iter().filter(|(_, _, lowest)| *lowest <= level);
            return Ok(Self(included.map(|(_, feature, _)| *feature).collect()));
        }
        let mut features = Vec::new();
        for name in text.split(',') {
            match FEATURES.iter().find(|(known, ..)| *known == name) {
                Some((_, feature, _)) => features.push(*feature),
                None => {
                    let known = std::iter::once("a level from 0 to 7").chain(Self::names());
                    return Err(unknown(format_args!("invalid feature: \"{name}\""), known));
                }
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
        assert_eq!(
            parse("2"),
            parse("version,metadata_summary,history,frozen_analysis")
        );
        assert!(parse("3").unwrap().has(Feature::FrozenDetails));
        assert!(!parse("4").unwrap().has(Feature::ChunkDetails));
        assert!(!parse("6").unwrap().has(Feature::SchemaRawDump));
        assert_eq!(parse("7").unwrap(), parse("99").unwrap());
        assert_eq!(parse("7").unwrap().0.len(), FEATURES.len());
        for bad in ["foo", "", "version,", "version,,history"] {
            let name = bad.rsplit(',').next().unwrap();
            let name = if bad.contains(",,") { "" } else { name };
            let error = parse(bad).unwrap_err();
            let want = format!(
                "invalid feature: \"{name}\" (one of a level from 0 to 7, version, metadata_summary, "
            );
            assert!(error.starts_with(&want), "{error}");
        }
    }
}
