//! What has to be made before the mount.

use redwarfs_reader::Image;

use crate::analysis::Analysis;
use crate::case::CaseIndex;
use crate::{Error, MountOptions, Result};

/// What has to be made before the mount, so that a mistake is found in time.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) case: Option<CaseIndex>,
    pub(crate) analysis: Option<Analysis>,
}

impl Prepared {
    pub(crate) fn new(image: &Image, options: &MountOptions) -> Result<Self> {
        let analysis = match &options.analysis_file {
            None => None,
            Some(path) => {
                let file = Analysis::create(path).map_err(|source| Error::AnalysisFile {
                    path: path.clone(),
                    source,
                })?;
                Some(Analysis::new(file, image.metadata())?)
            }
        };
        let case = options
            .case_insensitive
            .then(|| CaseIndex::new(image.metadata()));
        Ok(Self {
            case: case.transpose()?,
            analysis,
        })
    }
}
