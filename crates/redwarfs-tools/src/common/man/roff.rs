//! Manuals in the language of `man(1)`: the macros of man(7).

use super::document::{Block, Manual, Span, Style};

/// Begins a paragraph of a chapter.
const PARAGRAPH: &str = ".PP\n";

pub(super) fn render(manual: &Manual, source: &str) -> String {
    let mut out = format!(
        ".TH {} {} \"\" \"{}\" \"{}\"\n.SH NAME\n{} \\- {}\n",
        manual.name.to_uppercase(),
        manual.section,
        escape(source),
        volume(manual.section),
        escape(&manual.name),
        escape(&manual.summary)
    );
    for section in &manual.sections {
        out.push_str(&format!(".SH \"{}\"\n", escape(&section.title)));
        blocks(&mut out, &section.blocks, PARAGRAPH);
    }
    out
}

/// The title of a section of the manual.
fn volume(section: u8) -> &'static str {
    match section {
        5 => "File Formats",
        7 => "Miscellaneous Information",
        _ => "User Commands",
    }
}

/// `again` starts each block but the first.
fn blocks(out: &mut String, blocks: &[Block], again: &str) {
    let is_inner = again != PARAGRAPH;
    let mut is_inner_list = false;
    for (at, block) in blocks.iter().enumerate() {
        // Below the text of the block that it belongs to, and not at the margin of the page.
        let is_item = is_inner && matches!(block, Block::Item { .. });
        if is_item != is_inner_list {
            is_inner_list = is_item;
            out.push_str(if is_item { ".RS\n" } else { ".RE\n" });
        }
        match block {
            Block::Paragraph(spans) => {
                if at > 0 {
                    out.push_str(again);
                }
                text(out, spans);
            }
            Block::Literal(lines) => {
                out.push_str(again);
                out.push_str(".RS 4\n.nf\n");
                for line in lines {
                    out.push_str(&line_start(&escape(line)));
                    out.push('\n');
                }
                out.push_str(".fi\n.RE\n");
            }
            Block::Definition { term, body } => {
                out.push_str(".TP\n");
                text(out, term);
                self::blocks(out, body, ".IP\n");
            }
            Block::Item { number, body } => {
                out.push_str(&match number {
                    Some(number) => format!(".IP {number}. 4\n"),
                    None => String::from(".IP \\(bu 2\n"),
                });
                self::blocks(out, body, ".IP\n");
            }
        }
    }
    if is_inner_list {
        out.push_str(".RE\n");
    }
}

fn text(out: &mut String, spans: &[Span]) {
    let mut line = String::new();
    for span in spans {
        let text = escape(&span.text);
        match span.style {
            Style::Plain => line.push_str(&text),
            Style::Bold => line.push_str(&format!("\\fB{text}\\fR")),
            Style::Italic => line.push_str(&format!("\\fI{text}\\fR")),
        }
    }
    out.push_str(&line_start(&line));
    out.push('\n');
}

/// A line that begins with a control character is taken for a request.
fn line_start(line: &str) -> String {
    if line.starts_with(['.', '\'']) {
        format!("\\&{line}")
    } else {
        line.to_owned()
    }
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\e"),
            '-' => out.push_str("\\-"),
            '"' => out.push_str("\\(dq"),
            '\'' => out.push_str("\\(aq"),
            '`' => out.push_str("\\(ga"),
            '^' => out.push_str("\\(ha"),
            '~' => out.push_str("\\(ti"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    #[test]
    fn items_have_marks_and_indents() {
        let manual = Manual {
            name: "x".into(),
            section: 1,
            summary: "y".into(),
            sections: parse(
                "# A\nThese:\n- one\n- two\n\n  more\n\n12. last\n\nend\n\n**t**\n: has\n\n  - inner\n\n  after\n",
            ),
        };
        let text = manual.to_roff();
        let (_, text) = text.split_once(".SH \"A\"\n").unwrap();
        assert_eq!(
            text,
            "These:\n.IP \\(bu 2\none\n.IP \\(bu 2\ntwo\n.IP\nmore\n.IP 12. 4\nlast\n.PP\nend\n\
             .TP\n\\fBt\\fR\nhas\n.RS\n.IP \\(bu 2\ninner\n.RE\n.IP\nafter\n"
        );
    }

    #[test]
    fn requests_and_escapes() {
        let manual = Manual {
            name: "x-y".into(),
            section: 1,
            summary: "does it".into(),
            sections: parse(
                "# SEE ALSO\n.dot `-a` \\\\\n\n    .lit 'x'\n\n**t**\n: one\n\n  two\n",
            ),
        };
        assert_eq!(
            manual
                .to_roff()
                .replace(crate::common::version::VERSION, "V"),
            ".TH X-Y 1 \"\" \"RedwarFS V\" \"User Commands\"\n\
             .SH NAME\nx\\-y \\- does it\n\
             .SH \"SEE ALSO\"\n\\&.dot \\fB\\-a\\fR \\e\n\
             .PP\n.RS 4\n.nf\n\\&.lit \\(aqx\\(aq\n.fi\n.RE\n\
             .TP\n\\fBt\\fR\none\n.IP\ntwo\n"
        );
    }
}
