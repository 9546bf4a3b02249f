//! Manuals for a terminal.

use unicode_width::UnicodeWidthStr;

use super::document::{Block, Manual, Span, Style};

/// Columns before the text of a chapter, and again before the meaning of a term.
const INDENT: usize = 8;
/// Narrower than this, lines would hold no sentence.
const MIN_WIDTH: usize = 40;

pub(super) fn render(manual: &Manual, width: usize, fancy: bool) -> String {
    let mut out = Writer {
        text: String::new(),
        // The last column stays free: some terminals break the line after it.
        width: width.max(MIN_WIDTH) - 1,
        fancy,
    };
    out.line(
        0,
        &[
            Span::new(Style::Bold, format!("{}({})", manual.name, manual.section)),
            Span::new(Style::Plain, format!(" -- {}", manual.summary)),
        ],
    );
    for section in &manual.sections {
        out.text.push('\n');
        out.line(0, &[Span::new(Style::Bold, &section.title)]);
        out.blocks(INDENT, &section.blocks);
    }
    out.text
}

struct Writer {
    text: String,
    width: usize,
    fancy: bool,
}

impl Writer {
    fn blocks(&mut self, indent: usize, blocks: &[Block]) {
        for (at, block) in blocks.iter().enumerate() {
            let is_item = |block: Option<&Block>| matches!(block, Some(Block::Item { .. }));
            let is_next =
                is_item(Some(block)) && is_item(at.checked_sub(1).and_then(|at| blocks.get(at)));
            if at > 0 && !is_next {
                self.text.push('\n');
            }
            match block {
                Block::Paragraph(spans) => self.line(indent, spans),
                Block::Literal(lines) => {
                    for line in lines {
                        if !line.is_empty() {
                            self.spaces(indent + 4);
                            self.text.push_str(line);
                        }
                        self.text.push('\n');
                    }
                }
                Block::Definition { term, body } => {
                    self.line(indent, term);
                    self.blocks(indent + INDENT, body);
                }
                Block::Item { number, body } => {
                    let mark = match number {
                        Some(number) => format!("{number}. "),
                        None => String::from("- "),
                    };
                    let start = self.text.len();
                    self.blocks(indent + mark.len(), body);
                    // In the place of the spaces before its first line.
                    let place = start + indent..start + indent + mark.len();
                    if self
                        .text
                        .get(place.clone())
                        .is_some_and(|text| text.trim().is_empty())
                    {
                        self.text.replace_range(place, &mark);
                    }
                }
            }
        }
    }

    fn spaces(&mut self, count: usize) {
        self.text.extend(std::iter::repeat_n(' ', count));
    }

    /// Writes text broken at spaces.
    fn line(&mut self, indent: usize, spans: &[Span]) {
        let mut column = 0;
        for word in words(spans) {
            let length: usize = word.iter().map(|span| span.text.width()).sum();
            if column == 0 {
                self.spaces(indent);
                column = indent;
            } else if column + 1 + length > self.width {
                self.text.push('\n');
                self.spaces(indent);
                column = indent;
            } else {
                self.text.push(' ');
                column += 1;
            }
            for span in &word {
                self.span(span);
            }
            column += length;
        }
        self.text.push('\n');
    }

    fn span(&mut self, span: &Span) {
        let (on, off) = match span.style {
            Style::Bold if self.fancy => ("\x1b[1m", "\x1b[22m"),
            Style::Italic if self.fancy => ("\x1b[4m", "\x1b[24m"),
            _ => ("", ""),
        };
        self.text.push_str(on);
        self.text.push_str(&span.text);
        self.text.push_str(off);
    }
}

/// The words of a text; a word may change its style.
fn words(spans: &[Span]) -> Vec<Vec<Span>> {
    let mut words: Vec<Vec<Span>> = Vec::new();
    let mut open = false;
    for span in spans {
        for (at, piece) in span.text.split(' ').enumerate() {
            if at > 0 {
                open = false;
            }
            if piece.is_empty() {
                continue;
            }
            let piece = Span::new(span.style, piece);
            match words.last_mut() {
                Some(word) if open => word.push(piece),
                _ => words.push(vec![piece]),
            }
            open = true;
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    fn manual(text: &str) -> Manual {
        Manual {
            name: "x".into(),
            section: 1,
            summary: "y".into(),
            sections: parse(text),
        }
    }

    #[test]
    fn lines_fit_the_width() {
        let text = "# A\nSome **bold**, words and `more` of them, and so on and on until the end.\n\nterm\n: meaning of it that is too long for one line, so there will be two lines\n";
        let manual = manual(text);
        for width in [40, 50, 80] {
            let out = manual.to_text(width, false);
            assert!(out.lines().all(|line| line.len() < width), "{out}");
        }
        let out = manual.to_text(50, false);
        assert!(
            out.starts_with("x(1) -- y\n\nA\n        Some bold, words and more of them, and so\n"),
            "{out}"
        );
        assert!(out.contains("\n\n        term\n                meaning of it"));
        let list = super::tests::manual(
            "# A\nThese:\n- one item that is too long for a single line of this width\n- two\n\n  more\n\n10. ten\n",
        );
        assert_eq!(
            list.to_text(50, false),
            "x(1) -- y\n\nA\n        These:\n\n        - one item that is too long for a single\n          \
             line of this width\n        - two\n\n          more\n        10. ten\n"
        );
        let fancy = manual.to_text(50, true);
        assert!(fancy.contains("Some \x1b[1mbold\x1b[22m, words"), "{fancy}");
    }
}
