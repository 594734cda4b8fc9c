// Dead letters of a group.
import { groupPath } from "../dom.js";
import { count } from "../format.js";
import { linkButton } from "../parts.js";
import { groupColumns, letters } from "./dead-letters.js";
import { tr } from "../language.js";

export default function deadGroup(view) {
  const group = view.argument;
  letters(view, {
    title: tr`Dead letters of ${group}`, topic: `%DLQ%${group}`, resend: `/api/dead-letters/${encodeURIComponent(group)}/resend`,
    actions: [linkButton(tr`Consumer group`, groupPath(group))], columns: groupColumns, empty: tr`This group has no dead letters.`,
    explain: (messages) => (messages.length === 1 ? tr`1 message is sent to group ${group} only.` : tr`${count(messages.length)} messages are sent to group ${group} only.`),
    resent: (sent, all) => tr`Resent ${sent} of ${all} to group ${group}.`,
  });
}
