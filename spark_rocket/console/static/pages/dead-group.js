// Dead letters of a group.
import { groupPath } from "../dom.js";
import { linkButton } from "../parts.js";
import { areSent, groupColumns, letters } from "./dead-letters.js";

export default function deadGroup(view) {
  const group = view.argument;
  letters(view, {
    title: `Dead letters of ${group}`, topic: `%DLQ%${group}`, resend: `/api/dead-letters/${encodeURIComponent(group)}/resend`,
    actions: [linkButton("Group", groupPath(group))], columns: groupColumns, empty: "This group has no dead letters.",
    explain: (messages) => `${areSent(messages)} to group ${group} only.`,
  });
}
